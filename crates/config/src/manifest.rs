//! Kubernetes manifests: finds the configurations inside ConfigMaps, and translates positions in them to positions in
//! the manifest.
//!
//! A manifest is one or several YAML documents with `apiVersion` and `kind`, as in the output of Helm and
//! `kubectl get`. Other objects than ConfigMaps, Secrets and lists of these are ignored. Beside a configuration, keys
//! that contain something else get a note, unless the configuration names them as files.

mod recognition;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use self::recognition::{Recognition, is_usual_name, recognise};
use super::config_path::ConfigPath;
use super::diagnostic::{Diagnostic, Severity};
use super::quoting::{backquoted, backquoted_list};
use weir_yaml::{self as yaml, Dialect, Map, Node, NodeValue, Position};

/// Key that every Kubernetes object has.
const VERSION_KEY: &str = "apiVersion";

/// Maximum depth of lists in lists.
const MAX_LIST_DEPTH: usize = 4;

/// Maximum number of keys that a note names.
const MAX_NAMED_KEYS: usize = 10;

/// The sections of an object that have values.
struct ValueSections {
    /// Text.
    plain: &'static str,
    /// Base64.
    encoded: &'static str,
}

const CONFIG_MAP_SECTIONS: ValueSections = ValueSections { plain: "data", encoded: "binaryData" };
const SECRET_SECTIONS: ValueSections = ValueSections { plain: "stringData", encoded: "data" };

/// The values of a ConfigMap or a Secret.
#[derive(Clone, Debug)]
pub(super) struct ManifestValues {
    /// Values that are a configuration.
    pub(super) configs: Vec<EmbeddedConfig>,
    /// Values that look like one, unless a configuration names them as a file.
    pub(super) candidates: Vec<EmbeddedConfig>,
    /// The values that are text.
    plain: Option<ManifestKeys>,
    /// The values in base64, which are not read.
    encoded: Option<ManifestKeys>,
}

/// Keys of a section of an object, such as `data`.
#[derive(Clone, Debug)]
struct ManifestKeys {
    /// Path of the section.
    path: String,
    position: Position,
    keys: Vec<String>,
}

/// A configuration inside a manifest.
#[derive(Clone, Debug)]
pub(super) struct EmbeddedConfig {
    /// The text of the configuration. That of a block scalar has empty lines before it, so that its lines have the
    /// numbers of the manifest, also in messages that mention another line.
    pub(super) text: String,
    /// Name of the configuration, in the directory of the manifest: files that it names are relative to it.
    pub(super) file: PathBuf,
    /// All values of the ConfigMap, which Kubernetes mounts as files beside one another.
    values: Rc<BTreeMap<PathBuf, EmbeddedText>>,
}

/// A value of a ConfigMap and its place in the manifest.
#[derive(Clone, Debug)]
struct EmbeddedText {
    text: String,
    /// Path of the value, such as `data["weir.yaml"]`.
    path: String,
    position: Position,
    /// Line and indentation of the first line of a block scalar; `None` for other scalars.
    block: Option<Position>,
}

/// Returns the ConfigMaps and Secrets in `text`; `None` if it is not a manifest. With `key`, only the values under
/// that key are configurations.
///
/// # Errors
/// Returns a problem if a manifest contains no configuration, or not this key.
pub(super) fn find_configs(
    text: &str,
    file: &Path,
    key: Option<&str>,
) -> Result<Option<Vec<ManifestValues>>, Diagnostic> {
    // Most texts are none, and to parse one with thousands of rules takes a fifth of the time of its check.
    let documents = match text.contains(VERSION_KEY) {
        true => yaml::parse_stream(text, Dialect::Core).unwrap_or_default(),
        false => Vec::new(),
    };
    let is_manifest = documents.iter().any(|document| kind_of(document).is_some());
    let problem = |message: &str, hint: String| {
        Err(Diagnostic { hint: Some(hint), ..Diagnostic::for_file(file, message) })
    };
    if !is_manifest {
        return match key {
            Some(_) => problem(
                "not a Kubernetes manifest, so it has no keys to select",
                "check the file without `#KEY`".to_owned(),
            ),
            None => Ok(None),
        };
    }
    let mut search =
        ManifestSearch { lines: text.lines().collect(), file, key, found: Vec::new(), keys: Vec::new() };
    documents.iter().for_each(|document| search.visit(document, ConfigPath::ROOT, 0));
    if search.found.iter().any(ManifestValues::has_configs) {
        return Ok(Some(search.found));
    }
    let keys = backquoted_list(search.keys.iter().map(String::as_str));
    match (key, search.keys.is_empty()) {
        (Some(_), false) => {
            problem("no ConfigMap of this manifest has the selected key", format!("known keys: {keys}"))
        }
        (None, false) => problem(
            "no configuration in the ConfigMaps of this manifest",
            format!("select one of {keys} with `FILE#KEY`"),
        ),
        (_, true) => problem(
            "no ConfigMap in this manifest",
            "a configuration is a value under `data` of a ConfigMap, such as `weir.yaml`".to_owned(),
        ),
    }
}

/// Returns the kind of a Kubernetes object.
fn kind_of(document: &Node) -> Option<&str> {
    let NodeValue::Map(map) = &document.value else { return None };
    map.get_key_value(VERSION_KEY)?;
    map.get_key_value("kind")?.1.as_text()
}

struct ManifestSearch<'a> {
    lines: Vec<&'a str>,
    file: &'a Path,
    key: Option<&'a str>,
    found: Vec<ManifestValues>,
    /// Keys of all ConfigMaps.
    keys: Vec<String>,
}

impl ManifestSearch<'_> {
    fn visit(&mut self, object: &Node, at: ConfigPath<'_>, depth: usize) {
        let (Some(kind), NodeValue::Map(map)) = (kind_of(object), &object.value) else { return };
        match kind {
            "ConfigMap" => self.visit_values(map, &CONFIG_MAP_SECTIONS, at),
            "Secret" => self.visit_values(map, &SECRET_SECTIONS, at),
            "List" | "ConfigMapList" | "SecretList" if depth < MAX_LIST_DEPTH => {
                let Some((_, items)) = map.get_key_value("items") else { return };
                let NodeValue::List(items) = &items.value else { return };
                for (index, item) in items.iter().enumerate() {
                    self.visit(item, at.key("items").item(index), depth + 1);
                }
            }
            _ => {}
        }
    }

    /// Adds the values of an object.
    fn visit_values(&mut self, map: &Map, sections: &ValueSections, at: ConfigPath<'_>) {
        let mut found = ManifestValues {
            configs: Vec::new(),
            candidates: Vec::new(),
            plain: keys_of(map, sections.plain, at),
            encoded: keys_of(map, sections.encoded, at),
        };
        let values = Rc::new(self.read_values(map, sections.plain, at));
        let recognised: Vec<_> =
            values.iter().map(|(file, value)| (file, value, self.recognise(file, &value.text))).collect();
        let has_config = recognised.iter().any(|(.., kind)| *kind == Recognition::Certain);
        for (file, value, kind) in recognised {
            let config = || EmbeddedConfig {
                text: value.padded_text(),
                file: file.clone(),
                values: Rc::clone(&values),
            };
            match kind {
                Recognition::Certain => found.configs.push(config()),
                Recognition::Likely => found.candidates.push(config()),
                Recognition::BesideConfig if has_config => found.candidates.push(config()),
                Recognition::BesideConfig | Recognition::Other => {}
            }
        }
        self.found.push(found);
    }

    fn recognise(&self, file: &Path, text: &str) -> Recognition {
        match self.key {
            Some(key) if key == name_of(file) => Recognition::Certain,
            Some(_) => Recognition::Other,
            None => recognise(name_of(file), text),
        }
    }

    fn read_values(
        &mut self,
        map: &Map,
        section: &str,
        at: ConfigPath<'_>,
    ) -> BTreeMap<PathBuf, EmbeddedText> {
        let mut values = BTreeMap::new();
        let at = at.key(section);
        let directory = self.file.parent().unwrap_or_else(|| Path::new(""));
        for (key, value) in section_entries(map, section) {
            let (Some(name), Some(text)) = (key.scalar_text(), value.as_text()) else { continue };
            let embedded = EmbeddedText {
                text: text.to_owned(),
                path: at.key(name).to_string(),
                position: value.position,
                block: find_block(&self.lines, key.position.line, text),
            };
            values.insert(directory.join(&**name), embedded);
            self.keys.push(name.to_string());
        }
        values
    }
}

/// Returns the key of a value that is mounted as this file.
fn name_of(file: &Path) -> &str {
    file.file_name().and_then(|name| name.to_str()).unwrap_or_default()
}

fn section_entries<'m>(map: &'m Map, section: &str) -> &'m [(Node, Node)] {
    match map.get_key_value(section).map(|(_, values)| &values.value) {
        Some(NodeValue::Map(values)) => values.entries(),
        _ => &[],
    }
}

fn keys_of(map: &Map, section: &str, at: ConfigPath<'_>) -> Option<ManifestKeys> {
    let (key, _) = map.get_key_value(section)?;
    let names = section_entries(map, section).iter().filter_map(|(key, _)| key.scalar_text());
    let keys = names.map(|name| name.to_string()).collect();
    Some(ManifestKeys { path: at.key(section).to_string(), position: key.position, keys })
}

impl ManifestValues {
    fn has_configs(&self) -> bool {
        !self.configs.is_empty() || !self.candidates.is_empty()
    }

    /// Returns notes on the keys that are neither configurations nor files that one of them names.
    pub(super) fn unchecked_notes(
        &self,
        is_checked: impl Fn(&str) -> bool,
        manifest: &Path,
    ) -> Vec<Diagnostic> {
        let is_ours = self.has_configs();
        let plain = self.plain.iter().filter(|_| is_ours);
        let plain = plain.filter_map(|section| {
            section.note(|key| !is_checked(key), "no configuration, and no file of one")
        });
        let encoded = self.encoded.iter().filter_map(|section| {
            section.note(|key| is_ours || is_usual_name(key), "base64 is not decoded: use text")
        });
        plain.chain(encoded).map(|note| Diagnostic { file: manifest.to_owned(), ..note }).collect()
    }
}

impl ManifestKeys {
    /// Returns a note on the keys that `is_unchecked` selects.
    fn note(&self, is_unchecked: impl Fn(&str) -> bool, reason: &str) -> Option<Diagnostic> {
        let unchecked: Vec<&str> =
            self.keys.iter().map(String::as_str).filter(|key| is_unchecked(key)).collect();
        let mut named: Vec<String> =
            unchecked.iter().take(MAX_NAMED_KEYS).map(|key| backquoted(key)).collect();
        let others = unchecked.len().saturating_sub(named.len());
        if others > 0 {
            named.push(format!("{others} others"));
        }
        (!named.is_empty()).then(|| Diagnostic {
            line: self.position.line,
            column: self.position.column,
            path: self.path.clone(),
            hint: Some(reason.to_owned()),
            severity: Severity::Note,
            ..Diagnostic::for_file(Path::new(""), format!("not checked: {}", named.join(", ")))
        })
    }
}

/// Returns the position of the first line of a block scalar below the key in line `key_line`; `None` if `text` is not
/// there line by line, as in a quoted or folded scalar.
fn find_block(lines: &[&str], key_line: usize, text: &str) -> Option<Position> {
    let first = text.lines().position(|line| !line.trim().is_empty())?;
    let first_text = text.lines().nth(first)?;
    // The content begins in the line below the indicator, which is in the line of the key or the one below.
    (key_line..=key_line + 1).find_map(|start| {
        let outer = lines.get(start + first)?;
        let indent = outer.strip_suffix(first_text)?;
        let is_indented = |(outer, inner): (&&str, &str)| {
            inner.trim().is_empty() || outer.strip_prefix(indent).is_some_and(|outer| outer == inner)
        };
        let is_block = indent.bytes().all(|byte| byte == b' ')
            && lines.len() >= start + text.lines().count()
            && lines[start..].iter().zip(text.lines()).all(is_indented);
        is_block.then_some(Position { line: start + 1, column: indent.len() + 1 })
    })
}

impl EmbeddedText {
    fn padded_text(&self) -> String {
        let lines_before = self.block.map_or(0, |block| block.line - 1);
        "\n".repeat(lines_before) + &self.text
    }
}

impl EmbeddedConfig {
    pub(super) fn key(&self) -> &str {
        name_of(&self.file)
    }

    /// Returns the keys of the values that are mounted as these files.
    pub(super) fn keys_of<'p>(&self, files: impl Iterator<Item = &'p Path>) -> Vec<String> {
        files.filter(|file| self.values.contains_key(*file)).map(|file| name_of(file).to_owned()).collect()
    }

    /// Returns the keys of the values that the text mentions, which are probably files of the configuration.
    pub(super) fn keys_in_text(&self) -> Vec<String> {
        let names = self.values.keys().map(|file| name_of(file));
        names.filter(|name| self.text.contains(name)).map(ToOwned::to_owned).collect()
    }

    pub(super) fn data_files(&self) -> BTreeMap<PathBuf, Vec<u8>> {
        self.values.iter().map(|(file, value)| (file.clone(), value.text.clone().into_bytes())).collect()
    }

    /// Translates a problem of this configuration, or of another value beside it, to the manifest.
    pub(super) fn relocate(&self, diagnostic: Diagnostic, manifest: &Path) -> Diagnostic {
        let Some(value) = self.values.get(&diagnostic.file) else { return diagnostic };
        let position = match value.block {
            Some(block) if diagnostic.line > 0 => Position {
                line: if diagnostic.file == self.file {
                    diagnostic.line.max(block.line)
                } else {
                    block.line.saturating_add(diagnostic.line) - 1
                },
                column: block.column.saturating_add(diagnostic.column) - 1,
            },
            Some(_) | None => value.position,
        };
        let path = match diagnostic.path.as_str() {
            "" => value.path.clone(),
            inner if inner.starts_with('[') => format!("{}{inner}", value.path),
            inner => format!("{}.{inner}", value.path),
        };
        Diagnostic {
            file: manifest.to_owned(),
            line: position.line,
            column: position.column,
            path,
            ..diagnostic
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONFIG_MAP: &str = "\
apiVersion: v1
kind: Service
metadata: { name: web }
---
apiVersion: v1
kind: ConfigMap
metadata:
  name: weir
data:
  keys.yaml: |
    a: pro
  weir.yaml: |

    listeners: 127.0.0.1:0
    upstream: echo
    rules:
      - name: a
        limit: 1/x
";

    fn find(text: &str, key: Option<&str>) -> Vec<EmbeddedConfig> {
        let found = find_configs(text, Path::new("dir/all.yaml"), key).unwrap().unwrap();
        found.into_iter().flat_map(|values| values.configs).collect()
    }

    fn relocated(config: &EmbeddedConfig, line: usize, path: &str) -> String {
        let file = config.file.clone();
        let diagnostic =
            Diagnostic { line, column: 3, path: path.to_owned(), ..Diagnostic::for_file(&file, "wrong") };
        config.relocate(diagnostic, Path::new("dir/all.yaml")).to_string()
    }

    #[test]
    fn positions_in_a_block_scalar_are_those_of_the_manifest() {
        let found = find(CONFIG_MAP, None);
        let [config] = &*found else { panic!("{found:?}") };
        assert_eq!(config.file, Path::new("dir/weir.yaml"));
        assert_eq!(
            relocated(config, 18, "rules[0].limit"),
            "dir/all.yaml:18:7: data[\"weir.yaml\"].rules[0].limit: wrong"
        );
        assert!(config.data_files().contains_key(Path::new("dir/keys.yaml")));
        assert_eq!(config.text.lines().nth(17), Some("    limit: 1/x"));
        let beside =
            Diagnostic { line: 1, column: 1, ..Diagnostic::for_file(Path::new("dir/keys.yaml"), "wrong") };
        let beside = config.relocate(beside, Path::new("dir/all.yaml"));
        assert_eq!(beside.to_string(), "dir/all.yaml:11:5: data[\"keys.yaml\"]: wrong");
    }

    #[test]
    fn positions_in_a_quoted_scalar_are_those_of_the_scalar() {
        let text = "apiVersion: v1\nkind: List\nitems:\n- apiVersion: v1\n  kind: ConfigMap\n  data:\n    weir.yaml: \"listeners: 127.0.0.1:0\\nupstream: echo\\nrules: []\\n\"\n";
        let found = find(text, None);
        assert_eq!(
            relocated(&found[0], 3, "rules"),
            "dir/all.yaml:7:16: items[0].data[\"weir.yaml\"].rules: wrong"
        );
    }

    #[test]
    fn other_values_are_not_checked_unless_selected() {
        assert_eq!(find(CONFIG_MAP, Some("keys.yaml"))[0].text.trim_start(), "a: pro\n");
        let problem = find_configs(CONFIG_MAP, Path::new("all.yaml"), Some("none")).unwrap_err();
        assert_eq!(problem.hint.unwrap(), "known keys: `keys.yaml`, `weir.yaml`");
        let other = "apiVersion: v1\nkind: ConfigMap\ndata: { nginx.conf: \"a\", x.yaml: \"rules: []\" }\n";
        assert!(
            find_configs(other, Path::new("x"), None).unwrap_err().message.starts_with("no configuration")
        );
        let service = "apiVersion: v1\nkind: Service\n";
        assert!(find_configs(service, Path::new("x"), None).unwrap_err().message.starts_with("no ConfigMap"));
    }

    #[test]
    fn a_configuration_is_not_a_manifest() {
        let plain = "listeners: 127.0.0.1:0\nupstream: echo\nrules: []\n";
        assert!(find_configs(plain, Path::new("x"), None).unwrap().is_none());
        assert!(find_configs(plain, Path::new("x"), Some("weir.yaml")).is_err());
        assert!(find_configs("a: [", Path::new("x"), None).unwrap().is_none());
    }
}
