//! Types of values in the configuration. The schema describes the form of each, with an example that error messages
//! also use. [`crate::parse`] parses the texts.

mod list;

#[cfg(test)]
use schemars::JsonSchema;
use serde::Deserialize;

/// A list of items, or a single item in its place.
// Invalid items are `None`, so that the indices of the others are right.
#[derive(Clone, Debug)]
#[cfg_attr(test, derive(JsonSchema))]
#[cfg_attr(test, schemars(inline, untagged))]
pub enum List<T, const MIN: usize> {
    /// List of items.
    Many(#[cfg_attr(test, schemars(length(min = MIN)))] Vec<Option<T>>),
    /// Single item.
    One(T),
}

/// A list with at least one item.
pub type OneOrMany<T> = List<T, 1>;

/// A list that may be empty.
pub type ZeroOrMany<T> = List<T, 0>;

impl<T, const MIN: usize> List<T, MIN> {
    /// Returns the items with their indices. A single item in place of a list has no index.
    pub fn items(&self) -> impl Iterator<Item = (Option<usize>, &T)> {
        let (many, one) = match self {
            Self::Many(items) => (items.as_slice(), None),
            Self::One(item) => (&[][..], Some(item)),
        };
        let many = many.iter().enumerate().filter_map(|(index, item)| Some((Some(index), item.as_ref()?)));
        one.into_iter().map(|item| (None, item)).chain(many)
    }
}

/// A setting that can be turned off.
#[derive(Clone, Copy, Debug, Deserialize)]
#[cfg_attr(test, derive(JsonSchema))]
#[serde(untagged)]
#[cfg_attr(test, schemars(inline))]
pub enum OrOff<T> {
    /// `false`: turned off. Programs that write YAML 1.1 write `off` as `false`.
    Switch(#[cfg_attr(test, schemars(extend("const" = false)))] bool),
    /// Value of the setting if it is turned on.
    On(T),
}

/// A duration with its unit: `ms`, `s`, `m` or `min`, `h`, `d` or `w`.
#[derive(Clone, Debug, Deserialize)]
#[cfg_attr(test, derive(JsonSchema))]
#[serde(transparent)]
#[cfg_attr(test, schemars(extend("title" = "duration", "examples" = ["5s", "250ms"])))]
pub struct Duration(pub String);

/// A number of bytes with its unit: `B`, `KiB`, `MiB` or `GiB`.
#[derive(Clone, Debug, Deserialize)]
#[cfg_attr(test, derive(JsonSchema))]
#[serde(transparent)]
#[cfg_attr(test, schemars(extend("title" = "size", "examples" = ["64KiB", "1MiB"])))]
pub struct Size(pub String);

/// A rate as `N/PERIOD`: N units per period. Periods are `ms`, `s`, `m` or `min`, `h`, `d`, `w`, `month`, `year` or
/// the full word, with an optional count in front, such as `30s`.
#[derive(Clone, Debug, Deserialize)]
#[cfg_attr(test, derive(JsonSchema))]
#[serde(transparent)]
#[cfg_attr(test, schemars(extend("title" = "rate", "examples" = ["100/s", "10/30s", "10 per minute"])))]
pub struct Rate(pub String);

/// A percentage with at most two decimals.
#[derive(Clone, Debug, Deserialize)]
#[cfg_attr(test, derive(JsonSchema))]
#[serde(transparent)]
#[cfg_attr(test, schemars(extend("title" = "percentage", "examples" = ["10%", "0.5%"])))]
pub struct Percentage(pub String);

/// Format of the access log: `envoy`, `json`, or a format string with Envoy's command operators.
#[derive(Clone, Debug, Deserialize)]
#[cfg_attr(test, derive(JsonSchema))]
#[serde(transparent)]
#[cfg_attr(test, schemars(extend("title" = "log format", "examples" = ["envoy", "json", "%START_TIME% %RESPONSE_CODE%"])))]
pub struct LogFormat(pub String);

/// A factor with at most two decimals.
#[derive(Clone, Debug, Deserialize)]
#[cfg_attr(test, derive(JsonSchema))]
#[serde(transparent)]
#[cfg_attr(test, schemars(extend("title" = "factor", "examples" = ["3x", "1.5x"])))]
pub struct Factor(pub String);

/// Treatment of requests over the limit: `hard`, `shadow`, `soft PERCENTAGE`, `delay DURATION` or `elastic FACTOR`.
#[derive(Clone, Debug, Deserialize)]
#[cfg_attr(test, derive(JsonSchema))]
#[serde(transparent)]
#[cfg_attr(test, schemars(extend("title" = "throttle", "examples" = ["hard", "shadow", "soft 10%", "delay 500ms", "elastic 3x"])))]
pub struct ThrottleWords(pub String);

/// Order of waiting requests: `fifo`, `lifo` or `fair by KEY`.
#[derive(Clone, Debug, Deserialize)]
#[cfg_attr(test, derive(JsonSchema))]
#[serde(transparent)]
#[cfg_attr(test, schemars(extend("title" = "order", "examples" = ["fifo", "lifo", "fair by client_ip"])))]
pub struct WaitOrderWords(pub String);

/// An IP address or `localhost`, and a port. For a listener also `unix:` and the path of a socket.
#[derive(Clone, Debug, Deserialize)]
#[cfg_attr(test, derive(JsonSchema))]
#[serde(transparent)]
#[cfg_attr(test, schemars(extend("title" = "address", "examples" = ["0.0.0.0:8080", "[::]:8080"])))]
pub struct Address(pub String);

/// Address of a service: `host:port`, `http://host:port`, `https://host:port` or `unix:/path`. For an upstream also
/// `echo`, a built-in service that sends each request back as the response.
#[derive(Clone, Debug, Deserialize)]
#[cfg_attr(test, derive(JsonSchema))]
#[serde(transparent)]
#[cfg_attr(test, schemars(extend("title" = "upstream address", "examples" = ["127.0.0.1:3000", "echo"])))]
pub struct UpstreamAddress(pub String);

/// Destination of a forward proxy: a host pattern, an IP address or a network, with an optional port.
#[derive(Clone, Debug, Deserialize)]
#[cfg_attr(test, derive(JsonSchema))]
#[serde(transparent)]
#[cfg_attr(test, schemars(extend("title" = "destination", "examples" = ["api.example.com", "*.example.com:443", "10.2.0.0/16"])))]
pub struct Destination(pub String);

/// Name of a hop in `Via`: a token, or `disabled`.
#[derive(Clone, Debug, Deserialize)]
#[cfg_attr(test, derive(JsonSchema))]
#[serde(transparent)]
#[cfg_attr(test, schemars(extend("title" = "name of a hop", "examples" = ["weir", "edge-1"])))]
pub struct ViaName(pub String);

/// Name of a listener.
#[derive(Clone, Debug, Deserialize)]
#[cfg_attr(test, derive(JsonSchema))]
#[serde(transparent)]
#[cfg_attr(test, schemars(extend("title" = "listener", "examples" = ["egress", "127.0.0.1:8081"])))]
pub struct ListenerName(pub String);

/// URL of an OpenTelemetry collector: `http://host` or `https://host`, with an optional port and path.
#[derive(Clone, Debug, Deserialize)]
#[cfg_attr(test, derive(JsonSchema))]
#[serde(transparent)]
#[cfg_attr(test, schemars(extend("title" = "collector", "examples" = ["http://127.0.0.1:4318", "https://collector.example"])))]
pub struct CollectorAddress(pub String);

/// An IP address or a network.
#[derive(Clone, Debug, Deserialize)]
#[cfg_attr(test, derive(JsonSchema))]
#[serde(transparent)]
#[cfg_attr(test, schemars(extend("title" = "network", "examples" = ["10.0.0.0/8", "192.0.2.7", "2001:db8::/32"])))]
pub struct Network(pub String);

/// An IP address, a network, or a file with a list of them.
#[derive(Clone, Debug, Deserialize)]
#[cfg_attr(test, derive(JsonSchema))]
#[serde(untagged)]
pub enum Networks {
    /// IP address or network.
    One(Network),
    /// File with a list of IP addresses and networks.
    File(FileName),
}

/// A file that holds the value in place of the configuration.
#[derive(Clone, Debug, Deserialize)]
#[cfg_attr(test, derive(JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct FileName {
    /// Path of a file that holds the value in place of the configuration, relative to the configuration file.
    #[cfg_attr(test, schemars(required))]
    pub file: Option<String>,
}

/// Path pattern: `/exact`, `/prefix/*`, `/users/{id}` or `~regex` (unanchored).
#[derive(Clone, Debug, Deserialize)]
#[cfg_attr(test, derive(JsonSchema))]
#[serde(transparent)]
#[cfg_attr(test, schemars(extend("title" = "path", "examples" = ["/login", "/api/*", "/users/{id}", "~\\.php$"])))]
pub struct PathPattern(pub String);

/// Host pattern: `api.example.com`, `*.example.com` or `~regex` (unanchored).
#[derive(Clone, Debug, Deserialize)]
#[cfg_attr(test, derive(JsonSchema))]
#[serde(transparent)]
#[cfg_attr(test, schemars(extend("title" = "host", "examples" = ["api.example.com", "*.example.com"])))]
pub struct HostPattern(pub String);

/// Pattern for a value: an exact value, `*` (present), `!present` (absent) or `~regex` (unanchored).
#[derive(Clone, Debug, Deserialize)]
#[cfg_attr(test, derive(JsonSchema))]
#[serde(transparent)]
#[cfg_attr(test, schemars(extend("title" = "header pattern", "examples" = ["*", "!present", "~regex", "exact value"])))]
pub struct HeaderPattern(pub String);

/// Pattern for a value, or a file with a list of values.
#[derive(Clone, Debug, Deserialize)]
#[cfg_attr(test, derive(JsonSchema))]
#[serde(untagged)]
pub enum HeaderValues {
    /// Exact value, `*` (present), `!present` (absent) or `~regex` (unanchored).
    Pattern(HeaderPattern),
    /// File with a list of values, any of which matches.
    File(FileName),
}

/// Origin of a page: scheme, host and port without the scheme's own; `*` for every page.
#[derive(Clone, Debug, Deserialize)]
#[cfg_attr(test, derive(JsonSchema))]
#[serde(transparent)]
#[cfg_attr(test, schemars(extend("title" = "origin", "examples" = ["https://app.example", "https://*.example.com", "*"])))]
pub struct Origin(pub String);

/// Days, times of day and a time zone, in this order. Days or times may be left out. The time zone is UTC unless
/// given.
#[derive(Clone, Debug, Deserialize)]
#[cfg_attr(test, derive(JsonSchema))]
#[serde(transparent)]
#[cfg_attr(test, schemars(extend("title" = "schedule", "examples" = ["Mon-Fri 01:00-06:00 Europe/Berlin", "22:00-06:00"])))]
pub struct Schedule(pub String);

/// Name of a time zone in the IANA database.
#[derive(Clone, Debug, Deserialize)]
#[cfg_attr(test, derive(JsonSchema))]
#[serde(transparent)]
#[cfg_attr(test, schemars(extend("title" = "time zone", "examples" = ["Europe/Berlin", "UTC"])))]
pub struct TimeZone(pub String);

/// ISO 3166 country code of two letters.
#[derive(Clone, Debug, Deserialize)]
#[cfg_attr(test, derive(JsonSchema))]
#[serde(transparent)]
#[cfg_attr(test, schemars(extend("title" = "country", "examples" = ["DE", "BR"])))]
pub struct Country(pub String);

/// Continent code: `AF`, `AN`, `AS`, `EU`, `NA`, `OC` or `SA`.
#[derive(Clone, Debug, Deserialize)]
#[cfg_attr(test, derive(JsonSchema))]
#[serde(transparent)]
#[cfg_attr(test, schemars(extend("title" = "continent", "examples" = ["EU", "SA"])))]
pub struct Continent(pub String);

/// Number of an autonomous system, with or without the prefix `AS`.
#[derive(Clone, Debug, Deserialize)]
#[cfg_attr(test, derive(JsonSchema))]
#[serde(untagged)]
pub enum Asn {
    /// Number without a prefix, from 1 to 4294967295.
    Number(#[cfg_attr(test, schemars(range(min = 1, max = 4_294_967_295_u64)))] u32),
    /// Number with the prefix `AS`.
    Text(#[cfg_attr(test, schemars(extend("title" = "autonomous system", "examples" = ["AS64500"])))] String),
}

/// Name of a plan.
#[derive(Clone, Debug, Deserialize)]
#[cfg_attr(test, derive(JsonSchema))]
#[serde(transparent)]
#[cfg_attr(test, schemars(extend("title" = "plan", "examples" = ["free"])))]
pub struct PlanName(pub String);

/// Request method in upper case.
#[derive(Clone, Debug, Deserialize)]
#[cfg_attr(test, derive(JsonSchema))]
#[serde(transparent)]
#[cfg_attr(test, schemars(extend("title" = "method", "examples" = ["GET", "POST"])))]
pub struct Method(pub String);

/// Any JSON value.
#[derive(Clone, Debug, Deserialize)]
#[cfg_attr(test, derive(JsonSchema))]
#[serde(transparent)]
pub struct Json(pub serde_json::Value);
