//! Addresses of Redis servers and sentinels.

use percent_encoding::percent_decode_str;

use super::address::socket_path;
use super::upstream_address;
use crate::config::problem::{Fault, quoted};
use crate::remote::channel::Place;
use crate::store::settings::Credentials;
use crate::upstream::UpstreamAddress;

const REDIS_PORT: u16 = 6379;
const SENTINEL_PORT: u16 = 26379;
const EXPECTED: &str = "expected `redis://host:port`, `rediss://host:port` or `redis+unix:///path`";

/// A server as given by a URL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RedisServer {
    /// The server's address.
    pub place: Place,
    /// Whether connections use TLS.
    pub is_secure: bool,
    /// User name and password.
    pub credentials: Credentials,
    /// The number of the database, if the URL has one.
    pub db: Option<u16>,
}

/// Parses `redis://[user[:password]@]host[:port][/db]`, the same with `rediss`, or
/// `redis+unix:///path[?db=N]`. `valkey` may replace `redis`.
///
/// # Errors
/// Returns a [`Fault`] if it is not such a URL. The message does not contain the user name or the password.
pub fn redis_url(text: &str) -> Result<RedisServer, Fault> {
    let Some((scheme, rest)) = text.split_once("://") else {
        return Err(Fault::new(EXPECTED).hint("as in `redis://127.0.0.1:6379`"));
    };
    match scheme {
        "redis" | "valkey" => server(rest, false),
        "rediss" | "valkeys" => server(rest, true),
        "redis+unix" | "valkey+unix" => socket(rest),
        _ => Err(Fault::new(format!("unknown scheme {}, {EXPECTED}", quoted(scheme)))),
    }
}

/// Parses the address of a sentinel: `host[:port]`.
///
/// # Errors
/// Returns a [`Fault`] if it is not such an address.
pub fn sentinel_address(text: &str) -> Result<Place, Fault> {
    if text.contains("://") {
        return Err(Fault::new("expected `host:port` without a scheme")
            .hint("`store.tls` enables TLS for sentinels and servers"));
    }
    tcp(text, SENTINEL_PORT)
}

fn server(rest: &str, is_secure: bool) -> Result<RedisServer, Fault> {
    // A password may contain an unencoded `@` or `/`.
    let (user, rest) = rest.rsplit_once('@').map_or((None, rest), |(user, rest)| (Some(user), rest));
    let credentials = user.map_or_else(|| Ok(Credentials::default()), credentials)?;
    if rest.contains(['?', '#']) {
        return Err(
            Fault::new("`?` and `#` are not allowed in a Redis URL").hint("write the database as `/NUMBER`")
        );
    }
    let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
    let db = if path.is_empty() { None } else { Some(database(path)?) };
    Ok(RedisServer { place: tcp(authority, REDIS_PORT)?, is_secure, credentials, db })
}

fn socket(rest: &str) -> Result<RedisServer, Fault> {
    let (path, query) = rest.split_once('?').unwrap_or((rest, ""));
    let db = match query.strip_prefix("db=") {
        Some(number) => Some(database(number)?),
        None if query.is_empty() => None,
        None => return Err(Fault::new("unknown query parameter, expected `?db=NUMBER`")),
    };
    let place = socket_path(path).map(Place::Unix)?;
    Ok(RedisServer { place, is_secure: false, credentials: Credentials::default(), db })
}

fn credentials(user: &str) -> Result<Credentials, Fault> {
    let (name, password) =
        user.split_once(':').map_or((user, None), |(name, password)| (name, Some(password)));
    let decoded = |text: &str| match percent_decode_str(text).decode_utf8() {
        Ok(text) => Ok(Some(text.into_owned().into_boxed_str()).filter(|text| !text.is_empty())),
        Err(_) => Err(Fault::new("user name and password must be UTF-8")),
    };
    let credentials = Credentials { username: decoded(name)?, password: password.map_or(Ok(None), decoded)? };
    match credentials {
        Credentials { username: Some(_), password: None } => Err(Fault::new("user name without a password")
            .hint("write a password alone as `redis://:PASSWORD@host`")),
        credentials => Ok(credentials),
    }
}

fn database(text: &str) -> Result<u16, Fault> {
    let number = text.parse().ok().filter(|_| super::is_digits(text));
    number.ok_or_else(|| {
        Fault::new(format!("expected a database number from 0 to {}, got {}", u16::MAX, quoted(text)))
    })
}

fn tcp(authority: &str, port: u16) -> Result<Place, Fault> {
    let with_port = format!("{authority}:{port}");
    let has_port = authority.is_empty() || (authority.contains(':') && !authority.ends_with(']'));
    match upstream_address(if has_port { authority } else { &with_port })?.address {
        UpstreamAddress::Tcp { host, port } => Ok(Place::Tcp(host, port)),
        UpstreamAddress::Unix(_) | UpstreamAddress::Echo => {
            Err(Fault::new(format!("expected a host and a port, got {}", quoted(authority))))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said<T: std::fmt::Debug>(result: Result<T, Fault>) -> String {
        let fault = result.unwrap_err();
        fault.hint.map(|hint| format!("{} ({hint})", fault.message)).unwrap_or(fault.message)
    }

    fn read(text: &str) -> (String, bool, Option<u16>) {
        let RedisServer { place, is_secure, db, .. } = redis_url(text).unwrap();
        (place.to_string(), is_secure, db)
    }

    #[test]
    fn a_url_of_redis_has_a_place_and_perhaps_a_database() {
        assert_eq!(read("redis://h:7000/3"), ("h:7000".into(), false, Some(3)));
        assert_eq!(read("rediss://Redis.Internal"), ("redis.internal:6379".into(), true, None));
        assert_eq!(read("valkey://[::1]/"), ("[::1]:6379".into(), false, None));
        assert_eq!(read("valkeys://[::1]:7001"), ("[::1]:7001".into(), true, None));
        assert_eq!(
            read("redis+unix:///run/redis.sock?db=2"),
            ("unix:/run/redis.sock".into(), false, Some(2))
        );
        assert_eq!(sentinel_address("a").unwrap().to_string(), "a:26379");
    }

    #[test]
    fn users_and_passwords_are_decoded() {
        let of = |text| redis_url(text).unwrap().credentials;
        let some = |text: &str| Some(text.into());
        assert_eq!(of("redis://h"), Credentials::default());
        assert_eq!(
            of("redis://weir:s%40f@x@h"),
            Credentials { username: some("weir"), password: some("s@f@x") }
        );
        assert_eq!(of("redis://:p/w@h"), Credentials { username: None, password: some("p/w") });
    }

    #[test]
    fn what_is_no_url_of_redis_says_what_would_be_one() {
        assert!(said(redis_url("127.0.0.1:6379")).starts_with("expected `redis://host:port`"));
        assert!(said(redis_url("http://h")).starts_with("unknown scheme \"http\", expected"));
        assert_eq!(
            said(redis_url("redis://h/one")),
            "expected a database number from 0 to 65535, got \"one\""
        );
        assert_eq!(said(redis_url("redis://h:0")), "port must be at least 1, got \"h:0\"");
        assert!(said(redis_url("redis+unix://run/redis.sock")).contains("expected an absolute path"));
        assert!(said(redis_url("redis+unix:///run/redis.sock?x=1")).contains("`?db=NUMBER`"));
        assert!(said(redis_url("redis://h?db=1")).contains("`/NUMBER`"));
        assert!(said(sentinel_address("redis://h:1")).contains("without a scheme"));
    }

    #[test]
    fn no_message_repeats_a_password() {
        let urls = [
            "redis://u:s3cr3t@",
            "redis://s3cr3t@h",
            "redis://u:s3cr3t@h:port",
            "http://u:s3cr3t@h",
            "redis://u:s3cr3t@h?a",
            "redis://u:s3cr3t%ff@h",
        ];
        for url in urls {
            let said = said(redis_url(url));
            assert!(!said.contains("s3cr3t"), "{said}");
        }
    }
}
