//! The table of HTTP's requirements: every row names tests, and every test and file that it names exists.

use super::assert_none;
use super::source::{files, read_text, root};

const NOTE: &str = "docs/design/046-http-requirements.md";

#[test]
fn every_http_requirement_has_a_test_that_exists() {
    let sources: Vec<String> = ["src", "crates", "tests/it"]
        .into_iter()
        .flat_map(|directory| files(directory, "rs"))
        .map(|path| read_text(&path))
        .collect();
    let has_test = |name: &str| sources.iter().any(|source| source.contains(&format!("fn {name}(")));
    let mut problems = Vec::new();
    let mut rows = 0;
    for row in read_text(&root().join(NOTE))
        .lines()
        .filter(|line| line.starts_with("| ") && !line.starts_with("| section"))
    {
        rows += 1;
        let cells: Vec<&str> = row.trim_matches('|').split('|').map(str::trim).collect();
        let [section, _, _, file, tests] = cells[..] else {
            problems.push(format!("not five columns: {row}"));
            continue;
        };
        let tests: Vec<&str> = codes(tests).collect();
        if tests.is_empty() {
            problems.push(format!("{section}: no test"));
        }
        problems.extend(
            tests
                .into_iter()
                .filter(|name| !has_test(name))
                .map(|name| format!("{section}: no test `{name}`")),
        );
        problems.extend(
            codes(file)
                .filter(|file| !root().join(file).exists())
                .map(|file| format!("{section}: no file `{file}`")),
        );
    }
    assert!(rows > 60, "{rows} rows");
    assert_none("requirements of HTTP without a test", &problems);
}

/// Iterates over the words in backticks.
fn codes(cell: &str) -> impl Iterator<Item = &str> {
    cell.split('`').skip(1).step_by(2)
}
