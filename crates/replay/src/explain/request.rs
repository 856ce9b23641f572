//! A request as an operator describes it: in the query of `/explain`, or on the command line.

use std::net::{IpAddr, Ipv4Addr};

use http::header::HOST;
use http::uri::PathAndQuery;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Uri};
use percent_encoding::{AsciiSet, CONTROLS, NON_ALPHANUMERIC, utf8_percent_encode};

/// Bytes that a path or query cannot contain. They are encoded, so that an operator can write a space.
const NOT_IN_TARGET: &AsciiSet = &CONTROLS.add(b' ').add(b'"').add(b'<').add(b'>').add(b'#');

/// The peer unless another is named.
const DEFAULT_PEER: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

const KNOWN: &str =
    "method, path, host, client_ip, listener, header.NAME, body, domain, descriptor.KEY, format";

#[derive(Clone, Debug)]
pub struct RequestDescription {
    /// The method; GET unless named.
    pub method: Method,
    /// Path and query; `/` unless named.
    pub uri: Uri,
    /// The headers, including `Host`.
    pub headers: HeaderMap,
    /// Address from which the request arrives: 127.0.0.1 unless named.
    pub peer: IpAddr,
    /// Name of the listener at which it arrives; unknown unless named.
    pub listener: Option<String>,
    /// Its body.
    pub body: Option<String>,
    /// Envoy domain, if it is a descriptor of Envoy's rate limit service and not a request of the proxy.
    pub domain: Option<String>,
    /// Keys and values of the descriptor, in order.
    pub entries: Vec<(String, String)>,
}

/// Why a description is not that of a request.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DescriptionError {
    /// The parameter is unknown.
    #[error("unknown parameter `{0}`, expected one of {KNOWN}")]
    Unknown(String),
    /// The value is not valid.
    #[error("{name}: {problem}, got `{value}`")]
    Value {
        /// Name of the parameter.
        name: String,
        /// What is wrong.
        problem: &'static str,
        value: String,
    },
    /// Descriptor entries need a domain.
    #[error("`descriptor.KEY` needs `domain`")]
    NoDomain,
}

impl Default for RequestDescription {
    fn default() -> Self {
        Self {
            method: Method::GET,
            uri: Uri::from_static("/"),
            headers: HeaderMap::new(),
            peer: DEFAULT_PEER,
            listener: None,
            body: None,
            domain: None,
            entries: Vec::new(),
        }
    }
}

impl RequestDescription {
    /// Reads the decoded parameters of a query. `format` is ignored.
    ///
    /// # Errors
    /// [`DescriptionError`] for the first parameter that is unknown or not valid.
    pub fn from_pairs<N: AsRef<str>, V: AsRef<str>>(
        pairs: impl IntoIterator<Item = (N, V)>,
    ) -> Result<Self, DescriptionError> {
        let mut request = Self::default();
        for (name, value) in pairs {
            request.set(name.as_ref(), value.as_ref())?;
        }
        if request.domain.is_none() && !request.entries.is_empty() {
            return Err(DescriptionError::NoDomain);
        }
        Ok(request)
    }

    /// Sets the path, the query and, of an absolute URL, the host.
    ///
    /// # Errors
    /// [`DescriptionError`] if it is neither a URL nor a path.
    pub fn set_url(&mut self, url: &str) -> Result<(), DescriptionError> {
        let invalid = || invalid("URL", "expected a path such as `/login`, or an http URL", url);
        if url.starts_with('/') {
            return self.set("path", url);
        }
        let (scheme, rest) = url.split_once("://").ok_or_else(invalid)?;
        let is_http = ["http", "https"].iter().any(|known| scheme.eq_ignore_ascii_case(known));
        let end = rest.find(['/', '?']).unwrap_or(rest.len());
        let (authority, target) = rest.split_at(end);
        if !is_http || authority.is_empty() {
            return Err(invalid());
        }
        let target = if target.starts_with('/') { target.to_owned() } else { format!("/{target}") };
        self.set("path", &target)?;
        self.set("host", authority)
    }

    /// Adds a header, given as `name: value`. `Host` replaces the host of the URL.
    ///
    /// # Errors
    /// [`DescriptionError`] if it is not a header.
    pub fn add_header_line(&mut self, line: &str) -> Result<(), DescriptionError> {
        let (name, value) =
            line.split_once(':').ok_or_else(|| invalid("header", "expected `name: value`", line))?;
        let name = name.trim();
        if name.eq_ignore_ascii_case(HOST.as_str()) {
            return self.set("host", value.trim());
        }
        self.set(&format!("header.{name}"), value.trim())
    }

    /// Sets one parameter.
    ///
    /// # Errors
    /// [`DescriptionError`] if it is unknown or not valid.
    pub fn set(&mut self, name: &str, value: &str) -> Result<(), DescriptionError> {
        let unknown = || DescriptionError::Unknown(name.to_owned());
        match name {
            "method" => {
                let method = Method::from_bytes(value.as_bytes());
                self.method = method.map_err(|_| invalid(name, "not a method", value))?;
            }
            "path" => {
                self.uri =
                    target(value).ok_or_else(|| invalid(name, "not a path that begins with `/`", value))?
            }
            "host" => {
                let host = HeaderValue::from_str(value).ok().filter(|_| !value.is_empty());
                self.headers.insert(HOST, host.ok_or_else(|| invalid(name, "not a host", value))?);
            }
            "client_ip" => {
                let peer = value.parse::<IpAddr>();
                self.peer = peer.map_err(|_| invalid(name, "not an IP address", value))?.to_canonical();
            }
            "listener" => self.listener = Some(value.to_owned()),
            "body" => self.body = Some(value.to_owned()),
            "domain" if value.is_empty() => return Err(invalid(name, "empty", value)),
            "domain" => self.domain = Some(value.to_owned()),
            "format" => {}
            name => match name.split_once('.') {
                Some(("header", field)) => {
                    let field =
                        HeaderName::try_from(field).map_err(|_| invalid(name, "not a header name", field))?;
                    let content = HeaderValue::from_str(value);
                    self.headers
                        .append(field, content.map_err(|_| invalid(name, "not a header value", value))?);
                }
                Some(("descriptor", key)) => self.entries.push((key.to_owned(), value.to_owned())),
                _ => return Err(unknown()),
            },
        }
        Ok(())
    }

    /// Returns the description as the query of `/explain`.
    pub fn to_query(&self) -> String {
        let mut pairs = vec![
            ("method".to_owned(), self.method.to_string()),
            ("path".to_owned(), self.uri.to_string()),
            ("client_ip".to_owned(), self.peer.to_string()),
        ];
        pairs.extend(self.headers.iter().map(|(name, value)| {
            let name = if name == HOST { "host".to_owned() } else { format!("header.{name}") };
            (name, String::from_utf8_lossy(value.as_bytes()).into_owned())
        }));
        pairs.extend(self.listener.iter().map(|name| ("listener".to_owned(), name.clone())));
        pairs.extend(self.body.iter().map(|body| ("body".to_owned(), body.clone())));
        pairs.extend(self.domain.iter().map(|domain| ("domain".to_owned(), domain.clone())));
        pairs.extend(self.entries.iter().map(|(key, value)| (format!("descriptor.{key}"), value.clone())));
        let encode = |text: &str| utf8_percent_encode(text, NON_ALPHANUMERIC).to_string();
        let pairs = pairs.iter().map(|(name, value)| format!("{}={}", encode(name), encode(value)));
        pairs.collect::<Vec<_>>().join("&")
    }
}

/// Returns a path and query as a request target.
fn target(path: &str) -> Option<Uri> {
    if !path.starts_with('/') {
        return None;
    }
    let encoded = utf8_percent_encode(path, NOT_IN_TARGET).to_string();
    Some(Uri::from(PathAndQuery::try_from(encoded).ok()?))
}

fn invalid(name: &str, problem: &'static str, value: &str) -> DescriptionError {
    DescriptionError::Value { name: name.to_owned(), problem, value: value.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn url(url: &str) -> Result<RequestDescription, DescriptionError> {
        let mut request = RequestDescription::default();
        request.set_url(url)?;
        Ok(request)
    }

    #[test]
    fn url_sets_path_query_and_host() {
        for (text, target, host) in [
            ("/login?next=/a", "/login?next=/a", None),
            ("http://api.example.com:8080/a%20b", "/a%20b", Some("api.example.com:8080")),
            ("HTTPS://[::1]", "/", Some("[::1]")),
            ("http://a?x=1", "/?x=1", Some("a")),
            ("/a b/é", "/a%20b/%C3%A9", None),
        ] {
            let request = url(text).unwrap();
            assert_eq!(request.uri.to_string(), target, "{text}");
            assert_eq!(request.headers.get(HOST).map(|host| host.to_str().unwrap()), host, "{text}");
        }
        for text in ["", "login", "ftp://a/", "http://", "http:///x", "//"] {
            assert_eq!(url(text).is_err(), text != "//", "{text}");
        }
    }

    #[test]
    fn description_survives_the_query() {
        let mut request = url("http://api.example.com/a?b=c&d=%20").unwrap();
        request.add_header_line("X-Key: a=b&c").unwrap();
        request.add_header_line("x-key:second").unwrap();
        request.add_header_line("Host: other").unwrap();
        request.set("client_ip", "2001:db8::1").unwrap();
        request.set("body", "{\"a\": \"b&c+d\"}").unwrap();
        request.set("domain", "api").unwrap();
        request.set("descriptor.key", "a, b").unwrap();
        let query = request.to_query();
        let decode = |text| percent_encoding::percent_decode_str(text).decode_utf8_lossy();
        let pairs = query.split('&').map(|pair| pair.split_once('=').unwrap());
        let again =
            RequestDescription::from_pairs(pairs.map(|(name, value)| (decode(name), decode(value)))).unwrap();
        assert_eq!(again.to_query(), query);
        assert_eq!(again.headers.get_all("x-key").iter().count(), 2);
        assert_eq!(again.headers[HOST], "other");
        assert_eq!(again.body, request.body);
    }

    #[test]
    fn parameters_that_are_not_valid_are_named() {
        for (name, value, expected) in [
            ("metod", "GET", "unknown parameter `metod`"),
            ("method", "G T", "method: not a method, got `G T`"),
            ("path", "login", "path: not a path that begins with `/`, got `login`"),
            ("client_ip", "a", "client_ip: not an IP address, got `a`"),
            ("header.", "a", "header.: not a header name"),
            ("header.a b", "a", "header.a b: not a header name"),
            ("header.x", "a\nb", "header.x: not a header value"),
            ("host", "", "host: not a host"),
            ("descriptor.x", "y", "`descriptor.KEY` needs `domain`"),
        ] {
            let error = RequestDescription::from_pairs([(name, value)]).unwrap_err().to_string();
            assert!(error.starts_with(expected), "{error}");
        }
    }
}
