//! A document of envoyproxy/ratelimit as written, before validation.
//!
//! It is parsed from YAML here, or converted from a management server's message. Unknown keys and wrong types are
//! reported here, in the order and the words of the reference.

use serde_json::{Map, Value as Json};

use weir_yaml::{self as yaml, Dialect, Node, NodeValue, Position, Scalar, ScalarKind};

/// Maximum size of a file in bytes; a thousand times the largest one known.
const MAX_BYTES: usize = 32 << 20;
/// Maximum number of values of the wrong type that an error lists.
const MAX_MISMATCHES: usize = 100;

/// Why a set of documents is rejected: `FILE: problem`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{file}: {problem}")]
pub struct LoadError {
    /// Path of the file.
    pub file: String,
    /// The problem, without the file.
    pub problem: String,
    /// Position of the problem, if known; the reference's texts rarely contain it.
    pub position: Option<Position>,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct DomainDocument {
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
    pub position: Option<Position>,
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

const KNOWN_KEYS: [&str; 16] = [
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
        Self { file: file.to_owned(), problem: problem.into(), position: None }
    }

    /// Adds the position.
    pub(super) fn with_position(self, position: Option<Position>) -> Self {
        Self { position, ..self }
    }
}

impl DomainDocument {
    /// Parses the first YAML document of `text`.
    ///
    /// # Errors
    /// [`LoadError`] for invalid YAML, unknown keys, and values of the wrong type.
    pub fn from_yaml(file: &str, text: &str) -> Result<Self, LoadError> {
        let loading_error =
            |problem: String| LoadError::new(file, format!("error loading config file: {problem}"));
        if text.len() > MAX_BYTES {
            return Err(loading_error(format!("yaml: more than {MAX_BYTES} bytes, got {}", text.len())));
        }
        let parsed = yaml::parse(text, Dialect::Go).map_err(|errors| {
            let first = errors.first();
            let problem = first
                .map(|error| format!("yaml: line {}: {}", error.position.line, yaml_error_text(&error.kind)));
            loading_error(problem.unwrap_or_default()).with_position(first.map(|error| error.position))
        });
        match parsed? {
            Some(root) => Self::from_node(file, &root),
            None => Ok(Self::default()),
        }
    }

    /// Reads a document that is a tree already.
    ///
    /// # Errors
    /// [`LoadError`] for unknown keys, and values of the wrong type.
    pub fn from_node(file: &str, root: &Node) -> Result<Self, LoadError> {
        let loading_error =
            |problem: String| LoadError::new(file, format!("error loading config file: {problem}"));
        let mut reader = DocumentReader::default();
        match &root.value {
            NodeValue::Map(map) => validate(map.entries())
                .map_err(|(position, problem)| LoadError::new(file, problem).with_position(Some(position)))?,
            NodeValue::Scalar(Scalar { kind: ScalarKind::Null, .. }) => {}
            _ => reader.record_mismatch(root, "map[interface {}]interface {}"),
        }
        let document = Self {
            domain: reader.read_text(get(root, "domain")),
            descriptors: reader.read_descriptors(get(root, "descriptors")),
        };
        match reader.mismatches.as_slice() {
            [] => Ok(document),
            problems => {
                let shown = &problems[..problems.len().min(MAX_MISMATCHES)];
                let mut text = format!("yaml: unmarshal errors:\n{}", shown.join("\n"));
                if problems.len() > shown.len() {
                    text.push_str(&format!("\n  and {} more", problems.len() - shown.len()));
                }
                Err(loading_error(text).with_position(reader.first_position))
            }
        }
    }
}

/// Rejects unknown keys and invalid values, recursively; the depth of documents is bounded.
fn validate(entries: &[(Node, Node)]) -> Result<(), (Position, String)> {
    for (key, value) in entries {
        let Some(name) = key.as_text() else {
            return Err((
                key.position,
                format!("config error, key is not of type string: {}", format_like_go(key)),
            ));
        };
        if !KNOWN_KEYS.contains(&name) {
            return Err((key.position, format!("config error, unknown key '{name}'")));
        }
        match &value.value {
            // The keys of metadata are free.
            _ if name == "metadata" => {}
            NodeValue::Map(map) => validate(map.entries())?,
            NodeValue::List(items) => {
                for item in items.iter() {
                    let NodeValue::Map(map) = &item.value else {
                        let text = format_like_go(item);
                        let problem =
                            format!("config error, yaml file contains list of type other than map: {text}");
                        return Err((item.position, problem));
                    };
                    validate(map.entries())?;
                }
            }
            NodeValue::Scalar(Scalar { kind: ScalarKind::Float(_) | ScalarKind::LargeInt(_), .. }) => {
                return Err((value.position, "error checking config".to_owned()));
            }
            NodeValue::Scalar(_) | NodeValue::Tagged(_) => {}
        }
    }
    Ok(())
}

/// Collects type errors.
#[derive(Debug, Default)]
struct DocumentReader {
    mismatches: Vec<String>,
    /// Position of the first type error.
    first_position: Option<Position>,
}

impl DocumentReader {
    fn read_descriptors(&mut self, node: Option<&Node>) -> Vec<DescriptorDocument> {
        self.read_list(node, "[]config.YamlDescriptor", |reader, node| reader.read_descriptor(node))
    }

    fn read_descriptor(&mut self, node: &Node) -> DescriptorDocument {
        DescriptorDocument {
            key: self.read_text(get(node, "key")),
            value: self.read_text(get(node, "value")),
            rate_limit: get(node, "rate_limit").and_then(|limit| self.read_limit(limit)),
            shadow_mode: self.read_bool(get(node, "shadow_mode")),
            quota_mode: self.read_bool(get(node, "quota_mode")),
            detailed_metric: self.read_bool(get(node, "detailed_metric")),
            value_to_metric: self.read_bool(get(node, "value_to_metric")),
            share_threshold: self.read_bool(get(node, "share_threshold")),
            metadata: get(node, "metadata").and_then(|metadata| self.read_metadata(metadata)),
            descriptors: self.read_descriptors(get(node, "descriptors")),
            position: Some(node.position),
        }
    }

    fn read_limit(&mut self, node: &Node) -> Option<LimitDocument> {
        match &node.value {
            NodeValue::Map(_) => Some(LimitDocument {
                requests_per_unit: self.read_u32(get(node, "requests_per_unit")),
                unit: self.read_text(get(node, "unit")),
                unlimited: self.read_bool(get(node, "unlimited")),
                name: self.read_text(get(node, "name")),
                replaces: self.read_list(get(node, "replaces"), "[]config.yamlReplaces", |reader, entry| {
                    reader.read_text(get(entry, "name"))
                }),
            }),
            NodeValue::Scalar(Scalar { kind: ScalarKind::Null, .. }) => None,
            _ => {
                self.record_mismatch(node, "config.YamlRateLimit");
                None
            }
        }
    }

    fn read_metadata(&mut self, node: &Node) -> Option<Map<String, Json>> {
        match metadata_to_json(node) {
            Json::Object(fields) => Some(fields),
            Json::Null => None,
            _ => {
                self.record_mismatch(node, "map[string]interface {}");
                None
            }
        }
    }

    /// Numbers and booleans keep their text.
    fn read_text(&mut self, node: Option<&Node>) -> String {
        match node.map(|node| (node, &node.value)) {
            None | Some((_, NodeValue::Scalar(Scalar { kind: ScalarKind::Null, .. }))) => String::new(),
            Some((_, NodeValue::Scalar(scalar))) => (*scalar.text).to_owned(),
            Some((node, _)) => self.default_on_mismatch(node, "string"),
        }
    }

    fn read_bool(&mut self, node: Option<&Node>) -> bool {
        match node.map(|node| (node, &node.value)) {
            None | Some((_, NodeValue::Scalar(Scalar { kind: ScalarKind::Null, .. }))) => false,
            Some((_, NodeValue::Scalar(Scalar { kind: ScalarKind::Bool(flag), .. }))) => *flag,
            Some((node, _)) => self.default_on_mismatch(node, "bool"),
        }
    }

    fn read_u32(&mut self, node: Option<&Node>) -> u32 {
        match node.map(|node| (node, &node.value)) {
            None | Some((_, NodeValue::Scalar(Scalar { kind: ScalarKind::Null, .. }))) => 0,
            Some((node, NodeValue::Scalar(Scalar { kind: ScalarKind::Int(number), .. }))) => {
                u32::try_from(*number).unwrap_or_else(|_| self.default_on_mismatch(node, "uint32"))
            }
            Some((node, _)) => self.default_on_mismatch(node, "uint32"),
        }
    }

    fn read_list<T>(
        &mut self,
        node: Option<&Node>,
        expected: &str,
        mut read_item: impl FnMut(&mut Self, &Node) -> T,
    ) -> Vec<T> {
        match node.map(|node| (node, &node.value)) {
            None | Some((_, NodeValue::Scalar(Scalar { kind: ScalarKind::Null, .. }))) => Vec::new(),
            Some((_, NodeValue::List(items))) => items.iter().map(|item| read_item(self, item)).collect(),
            Some((node, _)) => self.default_on_mismatch(node, expected),
        }
    }

    fn default_on_mismatch<T: Default>(&mut self, node: &Node, expected: &str) -> T {
        self.record_mismatch(node, expected);
        T::default()
    }

    fn record_mismatch(&mut self, node: &Node, expected: &str) {
        let value = match &node.value {
            NodeValue::Scalar(Scalar { text, .. }) if text.chars().count() > 10 => {
                format!(" `{}...`", text.chars().take(7).collect::<String>())
            }
            NodeValue::Scalar(Scalar { text, .. }) => format!(" `{text}`"),
            NodeValue::List(_) | NodeValue::Map(_) | NodeValue::Tagged(_) => String::new(),
        };
        let (line, tag) = (node.position.line, yaml_tag(node));
        self.first_position.get_or_insert(node.position);
        self.mismatches.push(format!("  line {line}: cannot unmarshal {tag}{value} into {expected}"));
    }
}

fn get<'n>(node: &'n Node, name: &str) -> Option<&'n Node> {
    let NodeValue::Map(map) = &node.value else { return None };
    map.get_key_value(name).map(|(_, value)| value)
}

fn yaml_error_text(problem: &yaml::YamlErrorKind) -> String {
    match problem {
        yaml::YamlErrorKind::TooManyValues => "document contains excessive aliasing".to_owned(),
        yaml::YamlErrorKind::TooDeep(max) => format!("exceeded max depth of {max}"),
        problem => problem.to_string(),
    }
}

/// Returns the YAML tag of a value, for messages.
fn yaml_tag(node: &Node) -> &'static str {
    match &node.value {
        NodeValue::Scalar(scalar) => match scalar.kind {
            ScalarKind::Null => "!!null",
            ScalarKind::Bool(_) => "!!bool",
            ScalarKind::Int(_) | ScalarKind::LargeInt(_) => "!!int",
            ScalarKind::Float(_) => "!!float",
            ScalarKind::Merge => "!!merge",
            ScalarKind::Text => "!!str",
        },
        NodeValue::List(_) => "!!seq",
        NodeValue::Map(_) => "!!map",
        NodeValue::Tagged(tagged) => yaml_tag(&tagged.1),
    }
}

/// Returns a value as Go prints it.
fn format_like_go(node: &Node) -> String {
    match &node.value {
        NodeValue::Scalar(scalar) => match scalar.kind {
            ScalarKind::Null => "<nil>".to_owned(),
            ScalarKind::Bool(flag) => flag.to_string(),
            ScalarKind::Int(number) => number.to_string(),
            ScalarKind::LargeInt(number) => number.to_string(),
            ScalarKind::Float(number) => number.to_string(),
            ScalarKind::Merge | ScalarKind::Text => (*scalar.text).to_owned(),
        },
        NodeValue::List(items) => {
            format!("[{}]", items.iter().map(format_like_go).collect::<Vec<_>>().join(" "))
        }
        NodeValue::Map(map) => {
            let entries = map.entries().iter();
            let entries: Vec<_> = entries
                .map(|(key, value)| format!("{}:{}", format_like_go(key), format_like_go(value)))
                .collect();
            format!("map[{}]", entries.join(" "))
        }
        NodeValue::Tagged(tagged) => format_like_go(&tagged.1),
    }
}

/// Converts metadata to JSON.
fn metadata_to_json(node: &Node) -> Json {
    match &node.value {
        NodeValue::Scalar(scalar) => match scalar.kind {
            ScalarKind::Null => Json::Null,
            ScalarKind::Bool(flag) => Json::Bool(flag),
            ScalarKind::Int(number) => number.into(),
            ScalarKind::LargeInt(number) => number.into(),
            ScalarKind::Float(number) => number.into(),
            ScalarKind::Merge | ScalarKind::Text => Json::String((*scalar.text).to_owned()),
        },
        NodeValue::List(items) => items.iter().map(metadata_to_json).collect(),
        NodeValue::Map(map) => {
            let entries = map.entries().iter();
            Json::Object(entries.map(|(key, value)| (format_like_go(key), metadata_to_json(value))).collect())
        }
        NodeValue::Tagged(tagged) => metadata_to_json(&tagged.1),
    }
}
