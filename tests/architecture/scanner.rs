//! Tests of the scanner: every check that uses it must be able to fail.

use super::imports::non_settings_imports;
use super::*;

fn paths(path: &str, text: &str) -> Vec<String> {
    let paths = Source::new(path, text).without_tests().absolute_paths();
    paths.into_iter().map(|path| path.join("::")).collect()
}

#[test]
fn paths_are_found_in_any_syntax() {
    let text = "pub use crate::a::b; use crate::{c, d::{self, e as f}, g::*};\n\
                fn x(y: &crate::h::I) -> u8 { if true { crate::j::k(crate::l) } else { 1 } }";
    let found = ["a::b", "c", "d", "d::e", "g::*", "h::I", "j::k", "l"].map(|path| format!("weir::{path}"));
    assert_eq!(paths("src/one.rs", text), found);
}

#[test]
fn super_paths_are_resolved_from_the_file() {
    assert_eq!(paths("src/one.rs", "use super::two::Three;"), ["weir::two::Three"]);
    assert_eq!(
        paths("src/one/inner.rs", "use super::two; use super::super::three;"),
        ["weir::one::two", "weir::three"]
    );
}

#[test]
fn comments_strings_and_tests_are_ignored() {
    let text = "// use crate::a;\n/* crate::b /* crate::c */ crate::d */\n\
                const S: &str = \"crate::e \\\" crate::f\"; const R: &str = r#\"crate::\"g\"#;\n\
                const Q: char = '\"'; fn lives<'a>(x: &'a str) { crate::h::i(x) }\n\
                #[cfg(test)]\nmod tests { use crate::j; fn f() { \"}\"; } }\nuse crate::k;";
    assert_eq!(paths("crates/one/src/two.rs", text), ["weir_one::h::i", "weir_one::k"]);
}

#[test]
fn impurities_are_found() {
    let text = "use std::{fmt, net::{IpAddr, TcpStream as T}, time::Instant};\n\
                fn f() { metrics::counter(); Timestamp::now(); tokio::spawn(()); }";
    let found = impurities(&Source::new("src/rules.rs", text));
    let found: Vec<&str> = found.iter().filter_map(|line| line.strip_prefix("src/rules.rs: ")).collect();
    assert_eq!(
        found,
        ["TcpStream", "tokio", "std::net::TcpStream", "std::time::Instant", "::now(", "metrics::"]
    );
    assert!(impurities(&Source::new("src/rules.rs", "fn now(tokio_like: u8) {} // tokio")).is_empty());
}

#[test]
fn non_settings_imports_are_found() {
    let text = "use weir_net::listener; use weir_upstream::UpstreamAddress; fn f() { listener::bind(); access_log::Sink::Stdout }";
    let found = non_settings_imports(&Source::new("src/config.rs", text));
    assert_eq!(found, ["src/config.rs: listener::bind"]);
}

#[test]
fn unfinished_code_and_allow_attributes_are_found() {
    let text = "#[allow(dead_code)]\nfn f() { todo!(); x.unwrap(); y.unwrap_or(1); map(Option::unwrap) }\n\
                #![cfg_attr(test, allow(unused))]";
    let source = Source::new("src/a.rs", text);
    assert_eq!(unfinished_code(&source).len(), 3);
    assert_eq!(allow_attributes(&source), ["src/a.rs:1", "src/a.rs:3"]);
}

#[test]
fn functions_are_measured_from_fn_to_the_closing_brace() {
    let long = format!("fn long() {{\n{}}}", "    f(\"}\");\n".repeat(79));
    let source =
        Source::new("src/a.rs", &format!("trait T {{ fn none(a: [u8; 4]); }}\n{long}\nfn one() {{}}"));
    let measured: Vec<(String, usize)> =
        source.functions().into_iter().map(|function| (function.name, function.lines)).collect();
    assert_eq!(measured, [("long".to_owned(), 81), ("one".to_owned(), 1)]);
    assert_eq!(long_functions(&source), ["src/a.rs:2: long has 81 lines"]);
}
