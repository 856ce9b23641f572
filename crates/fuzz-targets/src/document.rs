//! Fuzz target for documents from a configuration server.

use std::path::Path;

use weir_config as config;
use weir_config::central::fuzzing::{parse_body, round_trip_cache};

const BOOTSTRAP: &str = "config: { http: http://h/ }\nlisteners: 127.0.0.1:0\nupstream: echo\n";

/// A document is stored and loaded without changes. Together with a bootstrap it is a valid configuration, or each of
/// its problems has a position in one of the two.
pub fn document(data: &[u8]) {
    let Ok(body) = std::str::from_utf8(data) else { return };
    let document = parse_body(body);
    let cached = round_trip_cache(&document)
        .unwrap_or_else(|problem| panic!("a cached document is not used: {problem}"));
    assert_eq!((&cached.text, &cached.validators), (&document.text, &document.validators));
    let file = Path::new("weir.yaml");
    let Err(problems) = config::from_bootstrap_and_document(BOOTSTRAP, file, &document) else { return };
    assert!(!problems.is_empty(), "rejected without a problem");
    for problem in problems {
        let shown = problem.to_string();
        assert!(!shown.contains(['\n', '\r']), "several lines: {shown:?}");
        let text = if problem.file == file { BOOTSTRAP } else { &*document.text };
        let lines = text.split(['\n', '\r']).count();
        let is_in_either = [file, Path::new(&*document.url)].contains(&&*problem.file);
        assert!(
            !is_in_either || (1..=lines + 1).contains(&problem.line) && problem.column >= 1,
            "wrong position: {shown:?}"
        );
    }
}
