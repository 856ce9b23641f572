//! Fuzz target for the imports of Kubernetes objects and of Traefik's files.

use std::path::Path;

use super::split_selector;
use weir_config as config;
use weir_import::{IMPORTERS, ImportSource, Imported};

const SERVICE: &str = "listeners: 127.0.0.1:0\nupstream: echo\n";
const FORMATS: [&str; 5] = ["ingress-nginx", "envoy-gateway", "linkerd", "kuadrant", "traefik"];

/// A file is converted deterministically or rejected. Converted rules are a valid configuration.
pub fn policies(data: &[u8]) {
    let (first, rest) = split_selector(data);
    let Ok(text) = std::str::from_utf8(rest) else { return };
    let name = FORMATS[usize::from(first) % FORMATS.len()];
    let Some(importer) = IMPORTERS.iter().find(|importer| importer.name == name) else {
        panic!("no importer {name}");
    };
    let source = ImportSource { path: "f.yaml".into(), name: "f.yaml".to_owned(), text: text.to_owned() };
    let import = || importer.import(std::slice::from_ref(&source), None);
    let imported = import();
    assert_eq!(imported, import());
    let Ok(Imported { rules, .. }) = imported else { return };
    if let Err(problems) = config::from_text(&format!("{SERVICE}{rules}"), Path::new("fuzz.yaml"), &|_| None)
    {
        let problems: Vec<String> = problems.iter().map(ToString::to_string).collect();
        panic!("imported rules are invalid: {}\n{rules}", problems.join("\n"));
    }
}
