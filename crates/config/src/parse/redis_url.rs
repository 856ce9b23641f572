//! Addresses of Redis servers and sentinels.

use percent_encoding::percent_decode_str;

use super::address::socket_path;
use super::upstream_address;
use crate::diagnostic::ValueError;
use crate::quoting::quoted;
use weir_store::remote::channel::ServerAddress;
use weir_store::settings::Credentials;
use weir_upstream::UpstreamAddress;

const REDIS_PORT: u16 = 6379;
const SENTINEL_PORT: u16 = 26379;
const EXPECTED_URL: &str = "expected `redis://host:port`, `rediss://host:port` or `redis+unix:///path`";

/// A server as given by a URL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RedisServer {
    /// The server's address.
    pub address: ServerAddress,
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
/// Returns a [`ValueError`] if it is not such a URL. The message does not contain the user name or the
/// password.
pub fn redis_url(text: &str) -> Result<RedisServer, ValueError> {
    let Some((scheme, rest)) = text.split_once("://") else {
        return Err(ValueError::new(EXPECTED_URL).with_hint("as in `redis://127.0.0.1:6379`"));
    };
    match scheme {
        "redis" | "valkey" => parse_tcp_server(rest, false),
        "rediss" | "valkeys" => parse_tcp_server(rest, true),
        "redis+unix" | "valkey+unix" => parse_unix_server(rest),
        _ => Err(ValueError::new(format!("unknown scheme {}, {EXPECTED_URL}", quoted(scheme)))),
    }
}

/// Parses the address of a sentinel: `host[:port]`.
///
/// # Errors
/// Returns a [`ValueError`] if it is not such an address.
pub fn sentinel_address(text: &str) -> Result<ServerAddress, ValueError> {
    if text.contains("://") {
        return Err(ValueError::new("expected `host:port` without a scheme")
            .with_hint("`store.tls` enables TLS for sentinels and servers"));
    }
    parse_tcp_address(text, SENTINEL_PORT)
}

fn parse_tcp_server(rest: &str, is_secure: bool) -> Result<RedisServer, ValueError> {
    // A password may contain an unencoded `@` or `/`.
    let (user, rest) = rest.rsplit_once('@').map_or((None, rest), |(user, rest)| (Some(user), rest));
    let credentials = user.map_or_else(|| Ok(Credentials::default()), parse_credentials)?;
    if rest.contains(['?', '#']) {
        return Err(ValueError::new("`?` and `#` are not allowed in a Redis URL")
            .with_hint("write the database as `/NUMBER`"));
    }
    let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
    let db = if path.is_empty() { None } else { Some(parse_database(path)?) };
    Ok(RedisServer { address: parse_tcp_address(authority, REDIS_PORT)?, is_secure, credentials, db })
}

fn parse_unix_server(rest: &str) -> Result<RedisServer, ValueError> {
    let (path, query) = rest.split_once('?').unwrap_or((rest, ""));
    let db = match query.strip_prefix("db=") {
        Some(number) => Some(parse_database(number)?),
        None if query.is_empty() => None,
        None => return Err(ValueError::new("unknown query parameter, expected `?db=NUMBER`")),
    };
    let place = socket_path(path).map(ServerAddress::Unix)?;
    Ok(RedisServer { address: place, is_secure: false, credentials: Credentials::default(), db })
}

fn parse_credentials(user: &str) -> Result<Credentials, ValueError> {
    let (name, password) =
        user.split_once(':').map_or((user, None), |(name, password)| (name, Some(password)));
    let decoded = |text: &str| match percent_decode_str(text).decode_utf8() {
        Ok(text) => Ok(Some(text.into_owned().into_boxed_str()).filter(|text| !text.is_empty())),
        Err(_) => Err(ValueError::new("user name and password must be UTF-8")),
    };
    let credentials = Credentials { username: decoded(name)?, password: password.map_or(Ok(None), decoded)? };
    match credentials {
        Credentials { username: Some(_), password: None } => {
            Err(ValueError::new("user name without a password")
                .with_hint("write a password alone as `redis://:PASSWORD@host`"))
        }
        credentials => Ok(credentials),
    }
}

fn parse_database(text: &str) -> Result<u16, ValueError> {
    let number = text.parse().ok().filter(|_| super::is_digits(text));
    number.ok_or_else(|| {
        ValueError::new(format!("expected a database number from 0 to {}, got {}", u16::MAX, quoted(text)))
    })
}

fn parse_tcp_address(authority: &str, port: u16) -> Result<ServerAddress, ValueError> {
    let with_port = format!("{authority}:{port}");
    let has_port = authority.is_empty() || (authority.contains(':') && !authority.ends_with(']'));
    match upstream_address(if has_port { authority } else { &with_port })?.address {
        UpstreamAddress::Tcp { host, port } => Ok(ServerAddress::Tcp(host, port)),
        UpstreamAddress::Unix(_) | UpstreamAddress::Echo => {
            Err(ValueError::new(format!("expected a host and a port, got {}", quoted(authority))))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error_text<T: std::fmt::Debug>(result: Result<T, ValueError>) -> String {
        let error = result.unwrap_err();
        error.hint.map(|hint| format!("{} ({hint})", error.message)).unwrap_or(error.message)
    }

    fn read(text: &str) -> (String, bool, Option<u16>) {
        let RedisServer { address: place, is_secure, db, .. } = redis_url(text).unwrap();
        (place.to_string(), is_secure, db)
    }

    #[test]
    fn redis_url_is_parsed_to_address_tls_and_database() {
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
    fn redis_url_credentials_are_percent_decoded() {
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
    fn invalid_redis_url_is_rejected_with_expected_form() {
        assert!(error_text(redis_url("127.0.0.1:6379")).starts_with("expected `redis://host:port`"));
        assert!(error_text(redis_url("http://h")).starts_with("unknown scheme \"http\", expected"));
        assert_eq!(
            error_text(redis_url("redis://h/one")),
            "expected a database number from 0 to 65535, got \"one\""
        );
        assert_eq!(error_text(redis_url("redis://h:0")), "port must be at least 1, got \"h:0\"");
        assert!(error_text(redis_url("redis+unix://run/redis.sock")).contains("expected an absolute path"));
        assert!(error_text(redis_url("redis+unix:///run/redis.sock?x=1")).contains("`?db=NUMBER`"));
        assert!(error_text(redis_url("redis://h?db=1")).contains("`/NUMBER`"));
        assert!(error_text(sentinel_address("redis://h:1")).contains("without a scheme"));
    }

    #[test]
    fn redis_url_errors_never_quote_credentials() {
        let urls = [
            "redis://u:s3cr3t@",
            "redis://s3cr3t@h",
            "redis://u:s3cr3t@h:port",
            "http://u:s3cr3t@h",
            "redis://u:s3cr3t@h?a",
            "redis://u:s3cr3t%ff@h",
        ];
        for url in urls {
            let said = error_text(redis_url(url));
            assert!(!said.contains("s3cr3t"), "{said}");
        }
    }
}
