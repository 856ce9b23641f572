//! The kinds of values that configuration is made of. The schema says what each looks like, with an example
//! that error messages use too; what a text means is read by [`crate::config::parse`].

use schemars::JsonSchema;
use serde::Deserialize;

/// A list of at least so many items; a single value stands for a list of itself. Refused items leave gaps.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(untagged)]
#[schemars(inline)]
pub enum List<T, const MIN: usize> {
    /// A list.
    Many(#[schemars(length(min = MIN))] Vec<Option<T>>),
    /// One value.
    One(T),
}

/// A list with at least one item.
pub type OneOrMany<T> = List<T, 1>;

/// A list that may be empty.
pub type ZeroOrMany<T> = List<T, 0>;

impl<T, const MIN: usize> List<T, MIN> {
    /// All items with their index, which an item that stands for the list has not.
    pub fn items(&self) -> impl Iterator<Item = (Option<usize>, &T)> {
        let (many, one) = match self {
            Self::Many(items) => (items.as_slice(), None),
            Self::One(item) => (&[][..], Some(item)),
        };
        let many = many.iter().enumerate().filter_map(|(index, item)| Some((Some(index), item.as_ref()?)));
        one.into_iter().map(|item| (None, item)).chain(many)
    }
}

/// Something that can be turned off.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema)]
#[serde(untagged)]
#[schemars(inline)]
pub enum OrOff<T> {
    /// `false`, as programs that write YAML 1.1 say `off`.
    Switch(#[schemars(extend("const" = false))] bool),
    /// Turned on.
    On(T),
}

/// A time with its unit: ms, s, m or min, h, d or w.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(transparent)]
#[schemars(extend("title" = "duration", "examples" = ["5s", "250ms"]))]
pub struct Duration(pub String);

/// So many bytes, with their unit: B, KiB, MiB or GiB.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(transparent)]
#[schemars(extend("title" = "size", "examples" = ["64KiB", "1MiB"]))]
pub struct Size(pub String);

/// So many per time, `N/PERIOD`. Periods: ms, s, m or min, h, d, w, month, year, or the word in full, with a
/// count before it if need be.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(transparent)]
#[schemars(extend("title" = "rate", "examples" = ["100/s", "10/30s", "10 per minute"]))]
pub struct Rate(pub String);

/// A share of the whole, with at most two decimals.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(transparent)]
#[schemars(extend("title" = "percentage", "examples" = ["10%", "0.5%"]))]
pub struct Percentage(pub String);

/// So many times as much, with at most two decimals.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(transparent)]
#[schemars(extend("title" = "factor", "examples" = ["3x", "1.5x"]))]
pub struct Factor(pub String);

/// `hard`, `shadow`, `soft PERCENTAGE`, `delay DURATION` or `elastic FACTOR`.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(transparent)]
#[schemars(extend("title" = "throttle", "examples" = ["hard", "shadow", "soft 10%", "delay 500ms", "elastic 3x"]))]
pub struct ThrottleWords(pub String);

/// An IP address, or `localhost`, and a port; for a listener also `unix:` and the path of a socket.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(transparent)]
#[schemars(extend("title" = "address", "examples" = ["0.0.0.0:8080", "[::]:8080"]))]
pub struct Address(pub String);

/// Where requests go: `host:port`, `http://host:port`, `unix:/path`, or `echo` for a built-in answerer.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(transparent)]
#[schemars(extend("title" = "upstream address", "examples" = ["127.0.0.1:3000", "echo"]))]
pub struct UpstreamAddress(pub String);

/// Where a collector of spans is: `http://host:port`, and perhaps a path.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(transparent)]
#[schemars(extend("title" = "collector", "examples" = ["http://127.0.0.1:4318", "https://collector.example"]))]
pub struct CollectorAddress(pub String);

/// An address or a network.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(transparent)]
#[schemars(extend("title" = "network", "examples" = ["10.0.0.0/8", "192.0.2.7", "2001:db8::/32"]))]
pub struct Network(pub String);

/// Networks: one, or a file of them.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum Networks {
    /// An address or a network.
    One(Network),
    /// All that a file lists.
    File(FileName),
}

/// What stands in a file of its own.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FileName {
    /// Path of a file that holds the value in place of the configuration, relative to the configuration file.
    #[schemars(required)]
    pub file: Option<String>,
}

/// `/exact`, `/prefix/*`, `/users/{id}` or `~regex`.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(transparent)]
#[schemars(extend("title" = "path", "examples" = ["/login", "/api/*", "/users/{id}", "~\\.php$"]))]
pub struct PathPattern(pub String);

/// `api.example.com`, `*.example.com` or `~regex`.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(transparent)]
#[schemars(extend("title" = "host", "examples" = ["api.example.com", "*.example.com"]))]
pub struct HostPattern(pub String);

/// A value, `*` for any value, `!present` for none, or `~regex`.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(transparent)]
#[schemars(extend("title" = "header pattern", "examples" = ["*", "!present", "~regex", "exact value"]))]
pub struct HeaderPattern(pub String);

/// Values of a header: a pattern, or a file of them.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum HeaderValues {
    /// A value, `*` for any value, `!present` for none, or `~regex`.
    Pattern(HeaderPattern),
    /// Any that a file lists.
    File(FileName),
}

/// Days, times and a time zone, which is UTC unless given; days or times may be left out.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(transparent)]
#[schemars(extend("title" = "schedule", "examples" = ["Mon-Fri 01:00-06:00 Europe/Berlin", "22:00-06:00"]))]
pub struct Schedule(pub String);

/// The name of a time zone in the IANA database.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(transparent)]
#[schemars(extend("title" = "time zone", "examples" = ["Europe/Berlin", "UTC"]))]
pub struct TimeZone(pub String);

/// A country's code of two letters, as ISO 3166 has it.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(transparent)]
#[schemars(extend("title" = "country", "examples" = ["DE", "BR"]))]
pub struct Country(pub String);

/// A continent's code: AF, AN, AS, EU, NA, OC or SA.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(transparent)]
#[schemars(extend("title" = "continent", "examples" = ["EU", "SA"]))]
pub struct Continent(pub String);

/// The number of an autonomous system, alone or after `AS`.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum Asn {
    /// Alone.
    Number(#[schemars(range(min = 1, max = 4_294_967_295_u64))] u32),
    /// After `AS`.
    Text(#[schemars(extend("title" = "autonomous system", "examples" = ["AS64500"]))] String),
}

/// The name of a plan.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(transparent)]
#[schemars(extend("title" = "plan", "examples" = ["free"]))]
pub struct PlanName(pub String);

/// A request method, in upper case.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(transparent)]
#[schemars(extend("title" = "method", "examples" = ["GET", "POST"]))]
pub struct Method(pub String);

/// Any JSON value.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(transparent)]
pub struct Json(pub serde_json::Value);
