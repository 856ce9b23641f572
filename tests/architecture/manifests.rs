//! What the manifests of crates must not name.

use super::assert_none;
use super::source::{read_text, root};

/// Crates that decide requests. A program without a runtime, a network and metrics can use them.
const PURE: [&str; 2] = ["limiter", "policy"];

/// Beginnings of the names of packages with I/O, a runtime or metrics.
const IMPURE: [&str; 8] = ["tokio", "hyper", "h2", "metrics", "tracing", "notify", "redis", "socket2"];

/// Returns the dependencies of a crate, without those of its tests.
fn dependencies(manifest: &str) -> Vec<&str> {
    let mut sections = manifest.split("\n[").filter(|section| section.starts_with("dependencies]"));
    let lines = sections.next().unwrap_or_default().lines().skip(1);
    lines.filter_map(|line| line.split(['.', ' ', '=']).next()).filter(|name| !name.is_empty()).collect()
}

fn impure_dependencies(manifest: &str) -> Vec<&str> {
    let is_impure = |name: &&str| IMPURE.iter().any(|impure| name.starts_with(impure));
    dependencies(manifest).into_iter().filter(is_impure).collect()
}

#[test]
fn manifests_of_pure_crates_name_no_runtime() {
    for name in PURE {
        let manifest = read_text(&root().join(format!("crates/{name}/Cargo.toml")));
        assert!(!dependencies(&manifest).is_empty(), "{name}");
        let impure: Vec<_> = impure_dependencies(&manifest).into_iter().map(str::to_owned).collect();
        assert_none(&format!("dependencies of {name} that are not pure"), &impure);
    }
    let manifest = read_text(&root().join("crates/limiter/Cargo.toml"));
    let own: Vec<_> = dependencies(&manifest).into_iter().filter(|name| name.starts_with("weir")).collect();
    assert!(own.is_empty(), "the limiter is a library of its own: {own:?}");
}

#[test]
fn impure_dependencies_are_found() {
    let manifest = "[package]\nname = \"a\"\n\n[dependencies]\nserde.workspace = true\ntokio-rustls = \"1\"\n\n[dev-dependencies]\ntokio = \"1\"\n";
    assert_eq!(impure_dependencies(manifest), ["tokio-rustls"]);
}
