//! Notes of `weir check`: no configuration of our own has one, unless the table says why. And the committed schema is
//! the one that `weir schema` prints.

use std::path::Path;
use std::{env, fs};

use serde_yaml::Value as Yaml;
use weir_config as config;

use super::assert_none;
use super::documents::code_blocks;
use super::source::{display_path, documents, files, read_text, root};

/// A note that a page shows on purpose.
struct ExpectedNote {
    page: &'static str,
    /// A part of the note.
    note: &'static str,
}

const EXPECTED: &[ExpectedNote] = &[
    // A bootstrap is checked without the document that it fetches.
    ExpectedNote { page: "docs/guides/central-configuration.md", note: "only this file is checked" },
    ExpectedNote { page: "docs/operations/config-server.md", note: "only this file is checked" },
    ExpectedNote { page: "docs/reference/config-http.md", note: "only this file is checked" },
    // The directory is that of a deployment.
    ExpectedNote { page: "docs/operations/state-file.md", note: "cannot save counters" },
    ExpectedNote { page: "docs/reference/process.md", note: "cannot save counters" },
    // The import keeps the algorithm of Envoy.
    ExpectedNote { page: "docs/guides/migration/envoy.md", note: "token_bucket admits burst plus refill" },
    // The page has the section alone.
    ExpectedNote { page: "docs/reference/store.md", note: "not used, because no rule needs the store" },
];

/// Files that configurations in the documentation name, and the test data in their place.
const DATA_FILES: [(&str, &str); 4] = [
    ("issuer.pem", "tests/data/jwt/ec.pub.pem"),
    ("country.mmdb", "tests/data/country.mmdb"),
    ("GeoLite2-City.mmdb", "tests/data/city.mmdb"),
    ("GeoLite2-ASN.mmdb", "tests/data/asn.mmdb"),
];

const TEXT_FILES: [(&str, &str); 5] = [
    ("members.yaml", "a: pro\n"),
    ("keys.yaml", "a: pro\n"),
    ("partners.txt", "192.0.2.0/24\n"),
    ("unwanted.txt", "198.51.100.0/24\n"),
    ("busy.html", "<p>busy\n"),
];

/// Returns a directory with the files that configurations in the documentation name.
fn data_directory() -> tempfile::TempDir {
    let directory = tempfile::tempdir().expect("a temporary directory");
    for (name, source) in DATA_FILES {
        fs::copy(root().join(source), directory.path().join(name)).expect("a copy");
    }
    for (name, content) in TEXT_FILES {
        fs::write(directory.path().join(name), content).expect("a file");
    }
    directory
}

/// Returns the notes on a configuration, or its problems.
fn check(text: &str, directory: &Path) -> Result<Vec<String>, Vec<String>> {
    let lines =
        |found: &[config::Diagnostic]| found.iter().map(|line| format!("{}: {line}", line.line)).collect();
    match config::from_text(text, &directory.join("weir.yaml"), &|_| None) {
        Ok(config) => Ok(lines(&config.notices)),
        Err(problems) => Err(lines(&problems)),
    }
}

/// Returns a fragment with what it needs to be a whole configuration.
fn complete(text: &str) -> String {
    let has = |key: &str| text.lines().any(|line| line.starts_with(key));
    let needs_service = text.contains(" domain: ") && !has("rls:");
    let mut whole = if needs_service { "rls: { address: 127.0.0.1:0 }\n" } else { "" }.to_owned();
    for (keys, line) in [
        (&["listeners:"][..], "listeners: 127.0.0.1:0"),
        (&["upstream:", "upstreams:"], "upstream: echo"),
        (&["rules:"], "rules: []"),
        // Other pages say how the paths of a service are matched.
        (&["trailing_slash:"], "trailing_slash: ignore"),
    ] {
        if !keys.iter().any(|key| has(key)) {
            whole += &format!("{line}\n");
        }
    }
    whole + text
}

#[test]
fn configurations_of_the_documentation_have_no_notes() {
    let directory = data_directory();
    let (mut found, mut checked) = (Vec::new(), 0);
    for path in documents() {
        let page = display_path(&path);
        for block in code_blocks(&read_text(&path)) {
            let text = match block.info.as_str() {
                "yaml" => block.text,
                "yaml recipe" | "yaml fragment" => complete(&block.text),
                _ => continue,
            };
            match check(&text, directory.path()) {
                Ok(notes) => {
                    checked += 1;
                    let is_expected = |note: &String| {
                        EXPECTED.iter().any(|expected| expected.page == page && note.contains(expected.note))
                    };
                    let unexpected = notes.into_iter().filter(|note| !is_expected(note));
                    found.extend(
                        unexpected.map(|note| format!("{page}, block of line {}: {note}", block.line)),
                    );
                }
                Err(problems) if block.info == "yaml recipe" => {
                    found.push(format!("{page}, block of line {}: {}", block.line, problems.join("\n")));
                }
                // A fragment may need other keys, or files.
                Err(_) => {}
            }
        }
    }
    assert!(checked >= 40, "only {checked} configurations checked");
    assert_none("notes", &found);
}

#[test]
fn shipped_configurations_have_no_notes() {
    let mut found = Vec::new();
    let mut add = |name: &str, text: &str, directory: &Path| {
        let lines = check(text, directory).unwrap_or_else(|problems| problems);
        found.extend(lines.into_iter().map(|line| format!("{name}: {line}")));
    };
    for path in files("config", "yaml") {
        add(&display_path(&path), &read_text(&path), &root().join("config"));
    }
    for path in files("deploy", "yaml") {
        for manifest in read_text(&path).split("\n---\n") {
            let manifest: Yaml = serde_yaml::from_str(manifest).expect("a manifest in YAML");
            let text = manifest.get("data").and_then(|data| data.get("weir.yaml")).and_then(Yaml::as_str);
            if let Some(text) = text {
                add(&display_path(&path), text, root());
            }
        }
    }
    for path in files("helm/weir/files/config", "yaml") {
        let mut text = read_text(&path);
        // The mode `proxy` has no default for the service that it protects.
        if path.ends_with("proxy.yaml") {
            text.push_str("upstream: shop.default.svc:80\n");
        }
        add(&display_path(&path), &text, root());
    }
    assert_none("notes", &found);
}

#[test]
fn committed_schema_is_the_one_of_the_program() {
    let path = root().join("config/weir.schema.json");
    if env::var_os("WEIR_BLESS").is_some() {
        fs::write(&path, config::schema_text()).expect("a written file");
    }
    assert!(
        read_text(&path) == config::schema_text(),
        "config/weir.schema.json is not up to date, run with WEIR_BLESS=1"
    );
}
