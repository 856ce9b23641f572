//! Checks the documentation against the program: examples load, documented defaults are the ones in the code, and every
//! metric and admin path is documented.

use std::path::Path;

use serde_yaml::Value as Yaml;
use weir_config as config;

use super::source::{Source, display_path, documents, files, read_text, root};
use super::{assert_none, reference};

/// A fenced block of a document.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct CodeBlock {
    /// Line of the opening fence.
    pub(super) line: usize,
    /// Info string after the fence, e.g. `yaml fragment`.
    pub(super) info: String,
    pub(super) text: String,
}

pub(super) fn document(name: &str) -> String {
    read_text(&root().join(name))
}

pub(super) fn code_blocks(text: &str) -> Vec<CodeBlock> {
    let mut blocks = Vec::new();
    let mut open: Option<CodeBlock> = None;
    for (index, line) in text.lines().enumerate() {
        let fence = line.trim_start().strip_prefix("```");
        match (open.take(), fence) {
            (None, Some(info)) => {
                open = Some(CodeBlock { line: index + 1, info: info.trim().to_owned(), text: String::new() });
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
fn load_errors(text: &str, name: &str) -> Vec<String> {
    // Examples name their files from there.
    std::env::set_current_dir(root()).expect("the root of the project");
    match config::from_text(text, Path::new(name), &|_| None) {
        Ok(_) => Vec::new(),
        Err(problems) => problems.iter().map(ToString::to_string).collect(),
    }
}

/// Returns the cells of all table rows, including header and delimiter rows.
pub(super) fn table_rows(text: &str) -> Vec<Vec<String>> {
    let tables = text.lines().filter_map(|line| line.trim().strip_prefix('|')?.strip_suffix('|'));
    // A pipe inside a cell is written `\|`.
    tables
        .map(|row| row.replace("\\|", "\u{1}"))
        .map(|row| row.split('|').map(|cell| cell.trim().replace('\u{1}', "|")).collect())
        .collect()
}

/// Returns the content of a cell that consists of one code span.
pub(super) fn inline_code(cell: &str) -> Option<&str> {
    cell.strip_prefix('`')?.strip_suffix('`').filter(|code| !code.contains('`'))
}

fn assert_loads(text: &str, name: &str) {
    let problems = load_errors(text, name);
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}

#[test]
fn every_yaml_block_of_the_documents_loads() {
    let mut loaded = 0;
    for path in documents().into_iter().chain([root().join("CHANGELOG.md")]) {
        for block in code_blocks(&read_text(&path)) {
            if block.info == "yaml" {
                loaded += 1;
                assert_loads(&block.text, &format!("{}, block of line {}", display_path(&path), block.line));
            }
            let is_known = !block.info.starts_with("yaml")
                || ["yaml", "yaml fragment", "yaml recipe"].contains(&&*block.info);
            assert!(is_known, "{}:{}: unknown info string {}", display_path(&path), block.line, block.info);
        }
    }
    assert!(loaded >= 3, "only {loaded} blocks found");
}

#[test]
fn every_example_configuration_loads() {
    let examples = files("config", "yaml");
    assert!(!examples.is_empty());
    for path in examples {
        assert_loads(&read_text(&path), &display_path(&path));
    }
}

#[test]
fn the_configuration_inside_every_manifest_loads() {
    let mut loaded = 0;
    for path in files("deploy", "yaml") {
        for manifest in read_text(&path).split("\n---\n") {
            let manifest: Yaml = serde_yaml::from_str(manifest).expect("a manifest in YAML");
            if let Some(text) =
                manifest.get("data").and_then(|data| data.get("weir.yaml")).and_then(Yaml::as_str)
            {
                loaded += 1;
                assert_loads(text, &format!("{}, weir.yaml", display_path(&path)));
            }
        }
    }
    assert_eq!(loaded, 3);
}

#[test]
fn the_default_configurations_of_the_chart_load() {
    let defaults = files("helm/weir/files/config", "yaml");
    assert!(!defaults.is_empty());
    for path in defaults {
        let mut text = read_text(&path);
        // The mode `proxy` has no default for the service that it protects.
        if path.ends_with("proxy.yaml") {
            text.push_str("upstream: shop.default.svc:80\n");
        }
        assert_loads(&text, &display_path(&path));
    }
}

#[test]
fn documented_defaults_are_those_of_the_program() {
    let text = "listeners: 127.0.0.1:0\nupstream: echo\nrules: []\n";
    let loaded = config::from_text(text, Path::new("least.yaml"), &|_| None).expect("a minimal file");
    let written = reference::documented_defaults();
    let duration = |key: &str| {
        let text = written.get(key).unwrap_or_else(|| panic!("{key} has no default"));
        config::parse::duration(text).unwrap_or_else(|fault| panic!("{key}: {}", fault.message))
    };
    let listener = &loaded.listeners[0];
    assert_eq!(duration("listeners.header_timeout"), listener.settings.header_timeout);
    assert_eq!(duration("listeners.idle_timeout"), listener.settings.idle_timeout);
    assert_eq!(duration("upstream.connect_timeout"), loaded.upstreams[0].settings.connect_timeout);
    assert_eq!(duration("upstream.timeout"), loaded.upstreams[0].settings.timeout);
    assert_eq!(duration("upstream.idle_timeout"), loaded.upstreams[0].settings.idle_timeout);
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
fn every_metric_and_admin_path_is_documented() {
    let pages = files("docs/operations", "md").into_iter().map(|page| read_text(&page));
    let operations = pages.collect::<String>() + &document("docs/rate-limit-service.md");
    let strings = |path: &str| Source::new(path, &document(path)).without_tests().strings;
    let metrics = strings("crates/telemetry/src/metrics/families.rs").into_iter().map(|(_, said)| said);
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

/// Returns the anchors of a page's headings, as mdBook and GitHub name them.
fn anchors(text: &str) -> Vec<String> {
    let mut is_code = false;
    let headings = text.lines().filter(|line| {
        is_code ^= line.trim_start().starts_with("```");
        !is_code && line.starts_with('#')
    });
    let anchor = |heading: &str| {
        let words = heading.trim_start_matches('#').trim().to_lowercase();
        let letters = words.chars().filter(|letter| letter.is_alphanumeric() || " -_".contains(*letter));
        letters.collect::<String>().replace(' ', "-")
    };
    headings.map(anchor).collect()
}

/// Returns the targets of the links in `text`.
fn links(text: &str) -> impl Iterator<Item = &str> {
    text.split("](").skip(1).filter_map(|rest| rest.split(')').next()).filter(|link| !link.contains("://"))
}

#[test]
fn links_between_documents_resolve() {
    let mut broken = Vec::new();
    for path in documents().into_iter().chain([root().join("CHANGELOG.md")]) {
        let text = read_text(&path);
        for link in links(&text) {
            let (file, anchor) = link.split_once('#').map_or((link, None), |(file, it)| (file, Some(it)));
            let to = match file {
                "" => path.clone(),
                file => path.parent().unwrap_or_else(|| root()).join(file),
            };
            let is_page = to.extension().is_some_and(|extension| extension == "md");
            let has_anchor = || {
                anchor.is_none_or(|anchor| !is_page || anchors(&read_text(&to)).iter().any(|it| it == anchor))
            };
            if !to.exists() || !has_anchor() {
                broken.push(format!("{}: {link}", display_path(&path)));
            }
        }
    }
    assert_none("a broken link", &broken);
}

#[test]
fn every_question_of_the_on_call_page_has_a_session() {
    let page = document("docs/operations/on-call.md");
    let questions: Vec<&str> = page.split("\n## ").skip(1).collect();
    assert_eq!(questions.len(), 10);
    let script = document("docs/on-call/record.py");
    for question in questions {
        let name = question.split_once("<!-- session: ").and_then(|(_, rest)| rest.split_once(" -->"));
        let (name, session) = name.unwrap_or_else(|| panic!("no session in {question}"));
        assert!(script.contains(&format!("(\"{name}\", ")), "{name} is not in record.py");
        assert!(session.contains("\n```text\n$ "), "{name} is not recorded: run docs/on-call/record.py");
    }
}

mod parser_tests {
    //! Tests of the readers: every check above must be able to fail.

    use super::*;

    #[test]
    fn anchors_and_links_are_found() {
        let text = "# What `a_b` does: 1/s\n```\n# none\n```\n## Two\n[x](y.md#z) [w](http://a.test/b)";
        assert_eq!(anchors(text), ["what-a_b-does-1s", "two"]);
        assert_eq!(links(text).collect::<Vec<_>>(), ["y.md#z"]);
    }

    #[test]
    fn code_blocks_have_line_and_info_string() {
        let text = "a\n```yaml\nb: 1\n```\n\n```yaml fragment\nc\n```\n```sh\nd\n```\n";
        let found: Vec<_> =
            code_blocks(text).into_iter().map(|block| (block.line, block.info, block.text)).collect();
        let expected = [(2, "yaml", "b: 1\n"), (6, "yaml fragment", "c\n"), (9, "sh", "d\n")];
        assert_eq!(found, expected.map(|(line, info, text)| (line, info.to_owned(), text.to_owned())));
    }

    #[test]
    fn invalid_configuration_in_a_code_block_is_reported() {
        assert_eq!(load_errors("listeners: 127.0.0.1:0\nupstream: echo\nrules: []\n", "x.yaml"), [""; 0]);
        let found = load_errors("listeners: 127.0.0.1:0\nupstream: ecko\nrules: []\n", "x.yaml");
        assert_eq!(found, ["x.yaml:2:11: upstream: missing port in \"ecko\" (as in `127.0.0.1:8080`)"]);
    }

    #[test]
    fn table_rows_are_split_into_cells() {
        let text = "| key | default |\n|---|---|\n| `a.b` | `1s` | or `a \\| b` |\nno row\n";
        assert_eq!(table_rows(text)[2], ["`a.b`", "`1s`", "or `a | b`"]);
        assert_eq!(
            (inline_code("`1s`"), inline_code("1s"), inline_code("`a` or `b`")),
            (Some("1s"), None, None)
        );
    }
}
