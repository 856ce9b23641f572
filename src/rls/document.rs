//! A document of envoyproxy/ratelimit as written, before validation.
//!
//! It is parsed from YAML here, or converted from a management server's message. Unknown keys and wrong types are
//! reported here, in the order and the words of the reference.

use serde_json::{Map, Value as Json};

use crate::yaml::{self, Dialect, Kind, Node, Position, Scalar, Value};

/// Maximum size of a file in bytes; a thousand times the largest one known.
const MOST_BYTES: usize = 32 << 20;

/// Why a set of documents is rejected: `FILE: problem`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{file}: {problem}")]
pub struct LoadError {
    /// Path of the file.
    pub file: String,
    /// The problem, without the file.
    pub problem: String,
    /// Position of the problem, if known; the reference's texts rarely contain it.
    pub(crate) place: Option<Position>,
}

/// One document.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Document {
    /// Domain of the limits.
    pub domain: String,
    /// Top-level descriptors.
    pub descriptors: Vec<DescriptorDocument>,
}

/// One node of the tree.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DescriptorDocument {
    /// Key of an entry that matches.
    pub key: String,
    /// Value of an entry that matches; empty for any value.
    pub value: String,
    /// Limit of descriptors that end at this node.
    pub rate_limit: Option<LimitDocument>,
    /// Whether the limit is in shadow mode.
    pub shadow_mode: bool,
    /// Whether a request is rejected only if all such limits are exceeded.
    pub quota_mode: bool,
    /// Whether statistics are kept by all values of a descriptor that ends here.
    pub detailed_metric: bool,
    /// Whether statistics are kept by the value at this level.
    pub value_to_metric: bool,
    /// Whether all values that match a wildcard share a counter.
    pub share_threshold: bool,
    /// Metadata for responses while the limit is not exceeded.
    pub metadata: Option<Map<String, Json>>,
    /// Descriptors of the next level.
    pub descriptors: Vec<Self>,
    /// Position in the document, if known.
    pub(crate) place: Option<Position>,
}

/// A limit as written.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LimitDocument {
    /// Requests per unit; 0 rejects all.
    pub requests_per_unit: u32,
    /// Unit of time in any letter case; empty if unlimited.
    pub unit: String,
    /// Whether there is no limit.
    pub unlimited: bool,
    /// Name by which other limits can replace this one.
    pub name: String,
    /// Names of limits that do not apply if this one does.
    pub replaces: Vec<String>,
}

const KNOWN: [&str; 16] = [
    "domain",
    "key",
    "value",
    "descriptors",
    "rate_limit",
    "unit",
    "requests_per_unit",
    "unlimited",
    "shadow_mode",
    "quota_mode",
    "name",
    "replaces",
    "detailed_metric",
    "value_to_metric",
    "share_threshold",
    "metadata",
];

impl LoadError {
    pub(super) fn new(file: &str, problem: impl Into<String>) -> Self {
        Self { file: file.to_owned(), problem: problem.into(), place: None }
    }

    /// Adds the position.
    pub(super) fn at(self, place: Option<Position>) -> Self {
        Self { place, ..self }
    }
}

impl Document {
    /// Parses the first YAML document of `text`.
    ///
    /// # Errors
    /// [`LoadError`] for invalid YAML, unknown keys, and values of the wrong type.
    pub fn from_yaml(file: &str, text: &str) -> Result<Self, LoadError> {
        let loading = |problem: String| LoadError::new(file, format!("error loading config file: {problem}"));
        if text.len() > MOST_BYTES {
            return Err(loading(format!("yaml: more than {MOST_BYTES} bytes, got {}", text.len())));
        }
        let parsed = yaml::parse(text, Dialect::Go).map_err(|errors| {
            let first = errors.first();
            let problem =
                first.map(|error| format!("yaml: line {}: {}", error.at.line, words(&error.problem)));
            loading(problem.unwrap_or_default()).at(first.map(|error| error.at))
        });
        let Some(root) = parsed? else { return Ok(Self::default()) };
        let mut reader = Reader::default();
        match &root.value {
            Value::Map(map) => validate(map.entries())
                .map_err(|(place, problem)| LoadError::new(file, problem).at(Some(place)))?,
            Value::Scalar(Scalar { kind: Kind::Null, .. }) => {}
            _ => reader.mismatch(&root, "map[interface {}]interface {}"),
        }
        let document = Self {
            domain: reader.text(get(&root, "domain")),
            descriptors: reader.descriptors(get(&root, "descriptors")),
        };
        match reader.mismatches.as_slice() {
            [] => Ok(document),
            problems => {
                Err(loading(format!("yaml: unmarshal errors:\n{}", problems.join("\n"))).at(reader.first))
            }
        }
    }
}

/// Rejects unknown keys and invalid values, recursively; the depth of documents is bounded.
fn validate(entries: &[(Node, Node)]) -> Result<(), (Position, String)> {
    for (key, value) in entries {
        let Some(name) = key.as_text() else {
            return Err((key.at, format!("config error, key is not of type string: {}", printed(key))));
        };
        if !KNOWN.contains(&name) {
            return Err((key.at, format!("config error, unknown key '{name}'")));
        }
        match &value.value {
            // The keys of metadata are free.
            _ if name == "metadata" => {}
            Value::Map(map) => validate(map.entries())?,
            Value::List(items) => {
                for item in items.iter() {
                    let Value::Map(map) = &item.value else {
                        let text = printed(item);
                        let problem =
                            format!("config error, yaml file contains list of type other than map: {text}");
                        return Err((item.at, problem));
                    };
                    validate(map.entries())?;
                }
            }
            Value::Scalar(Scalar { kind: Kind::Float(_) | Kind::Large(_), .. }) => {
                return Err((value.at, "error checking config".to_owned()));
            }
            Value::Scalar(_) | Value::Tagged(_) => {}
        }
    }
    Ok(())
}

/// Collects type errors.
#[derive(Debug, Default)]
struct Reader {
    mismatches: Vec<String>,
    /// Position of the first type error.
    first: Option<Position>,
}

impl Reader {
    fn descriptors(&mut self, node: Option<&Node>) -> Vec<DescriptorDocument> {
        self.list(node, "[]config.YamlDescriptor", |reader, node| reader.descriptor(node))
    }

    fn descriptor(&mut self, node: &Node) -> DescriptorDocument {
        DescriptorDocument {
            key: self.text(get(node, "key")),
            value: self.text(get(node, "value")),
            rate_limit: get(node, "rate_limit").and_then(|limit| self.limit(limit)),
            shadow_mode: self.flag(get(node, "shadow_mode")),
            quota_mode: self.flag(get(node, "quota_mode")),
            detailed_metric: self.flag(get(node, "detailed_metric")),
            value_to_metric: self.flag(get(node, "value_to_metric")),
            share_threshold: self.flag(get(node, "share_threshold")),
            metadata: get(node, "metadata").and_then(|metadata| self.metadata(metadata)),
            descriptors: self.descriptors(get(node, "descriptors")),
            place: Some(node.at),
        }
    }

    fn limit(&mut self, node: &Node) -> Option<LimitDocument> {
        match &node.value {
            Value::Map(_) => Some(LimitDocument {
                requests_per_unit: self.count(get(node, "requests_per_unit")),
                unit: self.text(get(node, "unit")),
                unlimited: self.flag(get(node, "unlimited")),
                name: self.text(get(node, "name")),
                replaces: self.list(get(node, "replaces"), "[]config.yamlReplaces", |reader, entry| {
                    reader.text(get(entry, "name"))
                }),
            }),
            Value::Scalar(Scalar { kind: Kind::Null, .. }) => None,
            _ => {
                self.mismatch(node, "config.YamlRateLimit");
                None
            }
        }
    }

    fn metadata(&mut self, node: &Node) -> Option<Map<String, Json>> {
        match json(node) {
            Json::Object(fields) => Some(fields),
            Json::Null => None,
            _ => {
                self.mismatch(node, "map[string]interface {}");
                None
            }
        }
    }

    /// Numbers and booleans keep their text.
    fn text(&mut self, node: Option<&Node>) -> String {
        match node.map(|node| (node, &node.value)) {
            None | Some((_, Value::Scalar(Scalar { kind: Kind::Null, .. }))) => String::new(),
            Some((_, Value::Scalar(scalar))) => (*scalar.text).to_owned(),
            Some((node, _)) => self.mismatched(node, "string"),
        }
    }

    fn flag(&mut self, node: Option<&Node>) -> bool {
        match node.map(|node| (node, &node.value)) {
            None | Some((_, Value::Scalar(Scalar { kind: Kind::Null, .. }))) => false,
            Some((_, Value::Scalar(Scalar { kind: Kind::Bool(said), .. }))) => *said,
            Some((node, _)) => self.mismatched(node, "bool"),
        }
    }

    fn count(&mut self, node: Option<&Node>) -> u32 {
        match node.map(|node| (node, &node.value)) {
            None | Some((_, Value::Scalar(Scalar { kind: Kind::Null, .. }))) => 0,
            Some((node, Value::Scalar(Scalar { kind: Kind::Int(number), .. }))) => {
                u32::try_from(*number).unwrap_or_else(|_| self.mismatched(node, "uint32"))
            }
            Some((node, _)) => self.mismatched(node, "uint32"),
        }
    }

    fn list<T>(
        &mut self,
        node: Option<&Node>,
        wanted: &str,
        mut read: impl FnMut(&mut Self, &Node) -> T,
    ) -> Vec<T> {
        match node.map(|node| (node, &node.value)) {
            None | Some((_, Value::Scalar(Scalar { kind: Kind::Null, .. }))) => Vec::new(),
            Some((_, Value::List(items))) => items.iter().map(|item| read(self, item)).collect(),
            Some((node, _)) => self.mismatched(node, wanted),
        }
    }

    fn mismatched<T: Default>(&mut self, node: &Node, wanted: &str) -> T {
        self.mismatch(node, wanted);
        T::default()
    }

    fn mismatch(&mut self, node: &Node, wanted: &str) {
        let value = match &node.value {
            Value::Scalar(Scalar { text, .. }) if text.chars().count() > 10 => {
                format!(" `{}...`", text.chars().take(7).collect::<String>())
            }
            Value::Scalar(Scalar { text, .. }) => format!(" `{text}`"),
            Value::List(_) | Value::Map(_) | Value::Tagged(_) => String::new(),
        };
        let (line, tag) = (node.at.line, tag(node));
        self.first.get_or_insert(node.at);
        self.mismatches.push(format!("  line {line}: cannot unmarshal {tag}{value} into {wanted}"));
    }
}

fn get<'n>(node: &'n Node, name: &str) -> Option<&'n Node> {
    let Value::Map(map) = &node.value else { return None };
    map.entry(name).map(|(_, value)| value)
}

fn words(problem: &yaml::Problem) -> String {
    match problem {
        yaml::Problem::TooManyValues => "document contains excessive aliasing".to_owned(),
        yaml::Problem::TooDeep(max) => format!("exceeded max depth of {max}"),
        problem => problem.to_string(),
    }
}

/// Returns the YAML tag of a value, for messages.
fn tag(node: &Node) -> &'static str {
    match &node.value {
        Value::Scalar(scalar) => match scalar.kind {
            Kind::Null => "!!null",
            Kind::Bool(_) => "!!bool",
            Kind::Int(_) | Kind::Large(_) => "!!int",
            Kind::Float(_) => "!!float",
            Kind::Merge => "!!merge",
            Kind::Text => "!!str",
        },
        Value::List(_) => "!!seq",
        Value::Map(_) => "!!map",
        Value::Tagged(tagged) => tag(&tagged.1),
    }
}

/// Returns a value as Go prints it.
fn printed(node: &Node) -> String {
    match &node.value {
        Value::Scalar(scalar) => match scalar.kind {
            Kind::Null => "<nil>".to_owned(),
            Kind::Bool(said) => said.to_string(),
            Kind::Int(number) => number.to_string(),
            Kind::Large(number) => number.to_string(),
            Kind::Float(number) => number.to_string(),
            Kind::Merge | Kind::Text => (*scalar.text).to_owned(),
        },
        Value::List(items) => format!("[{}]", items.iter().map(printed).collect::<Vec<_>>().join(" ")),
        Value::Map(map) => {
            let entries = map.entries().iter();
            let entries: Vec<_> =
                entries.map(|(key, value)| format!("{}:{}", printed(key), printed(value))).collect();
            format!("map[{}]", entries.join(" "))
        }
        Value::Tagged(tagged) => printed(&tagged.1),
    }
}

/// Converts metadata to JSON.
fn json(node: &Node) -> Json {
    match &node.value {
        Value::Scalar(scalar) => match scalar.kind {
            Kind::Null => Json::Null,
            Kind::Bool(said) => Json::Bool(said),
            Kind::Int(number) => number.into(),
            Kind::Large(number) => number.into(),
            Kind::Float(number) => number.into(),
            Kind::Merge | Kind::Text => Json::String((*scalar.text).to_owned()),
        },
        Value::List(items) => items.iter().map(json).collect(),
        Value::Map(map) => {
            let entries = map.entries().iter();
            Json::Object(entries.map(|(key, value)| (printed(key), json(value))).collect())
        }
        Value::Tagged(tagged) => json(&tagged.1),
    }
}
