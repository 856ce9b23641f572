//! Checks the documentation against the program: examples load, documented defaults are the ones in the code, and every
//! metric and admin path is documented.

use std::path::Path;

use serde_yaml::Value as Yaml;
use weir::config;

use super::reference;
use super::source::{Source, files, root, shown, text_of};

/// A fenced block of a document.
#[derive(Debug, PartialEq, Eq)]
struct Block {
    /// Line of the opening fence.
    line: usize,
    /// Info string after the fence, e.g. `yaml fragment`.
    info: String,
    text: String,
}

fn documents() -> Vec<std::path::PathBuf> {
    let mut documents = files("docs", "md");
    documents.extend(["README.md", "CONTRIBUTING.md", "CHANGELOG.md"].map(|name| root().join(name)));
    documents
}

fn document(name: &str) -> String {
    text_of(&root().join(name))
}

fn blocks(text: &str) -> Vec<Block> {
    let mut blocks = Vec::new();
    let mut open: Option<Block> = None;
    for (index, line) in text.lines().enumerate() {
        let fence = line.trim_start().strip_prefix("```");
        match (open.take(), fence) {
            (None, Some(info)) => {
                open = Some(Block { line: index + 1, info: info.trim().to_owned(), text: String::new() });
            }
            (None, None) => {}
            (Some(block), Some(_)) => blocks.push(block),
            (Some(mut block), None) => {
                block.text.push_str(line);
                block.text.push('\n');
                open = Some(block);
            }
        }
    }
    blocks
}

/// Returns the problems of a configuration, without environment variables.
fn problems(text: &str, name: &str) -> Vec<String> {
    match config::from_text(text, Path::new(name), &|_| None) {
        Ok(_) => Vec::new(),
        Err(problems) => problems.iter().map(ToString::to_string).collect(),
    }
}

/// Returns the cells of all table rows, including header and delimiter rows.
pub(super) fn rows(text: &str) -> Vec<Vec<String>> {
    let tables = text.lines().filter_map(|line| line.trim().strip_prefix('|')?.strip_suffix('|'));
    // A pipe inside a cell is written `\|`.
    tables
        .map(|row| row.replace("\\|", "\u{1}"))
        .map(|row| row.split('|').map(|cell| cell.trim().replace('\u{1}', "|")).collect())
        .collect()
}

/// Returns the content of a cell that consists of one code span.
pub(super) fn code(cell: &str) -> Option<&str> {
    cell.strip_prefix('`')?.strip_suffix('`').filter(|code| !code.contains('`'))
}

fn assert_loads(text: &str, name: &str) {
    let problems = problems(text, name);
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}

#[test]
fn every_yaml_block_of_the_documents_loads() {
    let mut loaded = 0;
    for path in documents() {
        for block in blocks(&text_of(&path)) {
            if block.info == "yaml" {
                loaded += 1;
                assert_loads(&block.text, &format!("{}, block of line {}", shown(&path), block.line));
            }
            let is_known = !block.info.starts_with("yaml")
                || ["yaml", "yaml fragment", "yaml recipe"].contains(&&*block.info);
            assert!(is_known, "{}:{}: unknown info string {}", shown(&path), block.line, block.info);
        }
    }
    assert!(loaded >= 3, "only {loaded} blocks found");
}

#[test]
fn every_example_configuration_loads() {
    let examples = files("config", "yaml");
    assert!(!examples.is_empty());
    for path in examples {
        assert_loads(&text_of(&path), &shown(&path));
    }
}

#[test]
fn the_configuration_inside_every_manifest_loads() {
    let mut loaded = 0;
    for path in files("deploy", "yaml") {
        for manifest in text_of(&path).split("\n---\n") {
            let manifest: Yaml = serde_yaml::from_str(manifest).expect("a manifest in YAML");
            if let Some(text) =
                manifest.get("data").and_then(|data| data.get("weir.yaml")).and_then(Yaml::as_str)
            {
                loaded += 1;
                assert_loads(text, &format!("{}, weir.yaml", shown(&path)));
            }
        }
    }
    assert_eq!(loaded, 1);
}

#[test]
fn the_default_configuration_of_the_chart_loads() {
    let values: Yaml = serde_yaml::from_str(&document("helm/weir/values.yaml")).expect("values in YAML");
    let text = serde_yaml::to_string(values.get("config").expect("a key `config`")).expect("valid YAML");
    assert_loads(&text, "helm/weir/values.yaml, config");
}

#[test]
fn the_defaults_are_those_the_program_uses() {
    let text = "listeners: 127.0.0.1:0\nupstream: echo\nrules: []\n";
    let loaded = config::from_text(text, Path::new("least.yaml"), &|_| None).expect("a minimal file");
    let written = reference::defaults();
    let duration = |key: &str| {
        let text = written.get(key).unwrap_or_else(|| panic!("{key} has no default"));
        config::parse::duration(text).unwrap_or_else(|fault| panic!("{key}: {}", fault.message))
    };
    let listener = &loaded.listeners[0];
    assert_eq!(duration("listeners.header_timeout"), listener.header_timeout);
    assert_eq!(duration("listeners.idle_timeout"), listener.idle_timeout);
    assert_eq!(duration("upstream.connect_timeout"), loaded.upstreams[0].connect_timeout);
    assert_eq!(duration("upstream.timeout"), loaded.upstreams[0].timeout);
    assert_eq!(duration("upstream.idle_timeout"), loaded.upstreams[0].idle_timeout);
    assert_eq!(duration("drain.delay"), loaded.drain.delay);
    assert_eq!(duration("drain.timeout"), loaded.drain.timeout);
    let said = |key: &str| written.get(key).cloned().unwrap_or_default();
    assert_eq!(said("admin.address"), loaded.admin.address.to_string());
    assert_eq!(said("client_ip.ipv6_prefix"), loaded.policy.identify.ipv6_prefix.to_string());
    assert_eq!(said("limiter.max_keys"), loaded.max_keys.to_string());
    assert_eq!(said("access_log"), "disabled");
    assert!(loaded.access_log.is_none());
}

#[test]
fn every_metric_and_every_admin_path_is_described() {
    let pages = files("docs/operations", "md").into_iter().map(|page| text_of(&page));
    let operations = pages.collect::<String>() + &document("docs/rate-limit-service.md");
    let strings = |path: &str| Source::new(path, &document(path)).without_tests().strings;
    let metrics = strings("src/telemetry/metrics/families.rs").into_iter().map(|(_, said)| said);
    let metrics: Vec<String> = metrics
        .filter(|said| ["weir_", "process_", "ratelimit_"].iter().any(|prefix| said.starts_with(prefix)))
        .collect();
    let paths = strings("src/admin/router.rs").into_iter().map(|(_, said)| said);
    let paths: Vec<String> = paths.filter(|said| said.starts_with('/') && !said.contains(' ')).collect();
    assert!(metrics.len() >= 20 && paths.len() >= 10, "too few found: {metrics:?} {paths:?}");
    for name in metrics.iter().chain(&paths) {
        let named = operations.contains(&format!("`{name}`")) || operations.contains(&format!(" {name}`"));
        assert!(named, "{name} is not documented");
    }
}

#[test]
fn links_between_documents_lead_somewhere() {
    for path in documents() {
        let text = text_of(&path);
        for target in text.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            let file = target.split('#').next().unwrap_or_default();
            if !file.is_empty() && !file.contains("://") {
                let to = path.parent().unwrap_or_else(|| root()).join(file);
                assert!(to.exists(), "{}: broken link {target}", shown(&path));
            }
        }
    }
}

mod readers {
    //! Tests of the readers: every check above must be able to fail.

    use super::*;

    #[test]
    fn blocks_have_their_place_and_kind() {
        let text = "a\n```yaml\nb: 1\n```\n\n```yaml fragment\nc\n```\n```sh\nd\n```\n";
        let found: Vec<_> =
            blocks(text).into_iter().map(|block| (block.line, block.info, block.text)).collect();
        let expected = [(2, "yaml", "b: 1\n"), (6, "yaml fragment", "c\n"), (9, "sh", "d\n")];
        assert_eq!(found, expected.map(|(line, info, text)| (line, info.to_owned(), text.to_owned())));
    }

    #[test]
    fn a_block_with_a_mistake_does_not_load() {
        assert_eq!(problems("listeners: 127.0.0.1:0\nupstream: echo\nrules: []\n", "x.yaml"), [""; 0]);
        let found = problems("listeners: 127.0.0.1:0\nupstream: ecko\nrules: []\n", "x.yaml");
        assert_eq!(found, ["x.yaml:2:11: upstream: missing port in \"ecko\" (as in `127.0.0.1:8080`)"]);
    }

    #[test]
    fn rows_are_read_cell_by_cell() {
        let text = "| key | default |\n|---|---|\n| `a.b` | `1s` | or `a \\| b` |\nno row\n";
        assert_eq!(rows(text)[2], ["`a.b`", "`1s`", "or `a | b`"]);
        assert_eq!((code("`1s`"), code("1s"), code("`a` or `b`")), (Some("1s"), None, None));
    }
}
