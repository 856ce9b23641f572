use std::time::{Duration, Instant};

use proptest::prelude::*;

use super::*;
use crate::config::at::At;

fn document(text: &str) -> Document {
    parse(text, Path::new("weir.yaml")).unwrap()
}

fn said(text: &str) -> Vec<String> {
    parse(text, Path::new("w")).unwrap_err().iter().map(ToString::to_string).collect()
}

fn place(position: Position) -> (usize, usize) {
    (position.line, position.column)
}

#[test]
fn every_key_and_value_has_its_place() {
    let positions =
        document("a: 1\nb:\n  - c: x\n    d: [y, \"z\"]\n  - {e: *no}\n".replace("*no", "w").as_str())
            .positions;
    let root = At::ROOT;
    let b = root.key("b");
    let (first, second) = (b.item(0), b.item(1));
    let d = first.key("d");
    assert_eq!(place(positions.value(root.key("a"))), (1, 4));
    assert_eq!(place(positions.key(root.key("b"))), (2, 1));
    assert_eq!(place(positions.value(b)), (3, 3));
    assert_eq!(place(positions.value(first)), (3, 5));
    assert_eq!(place(positions.key(d)), (4, 5));
    assert_eq!(place(positions.value(d.item(1))), (4, 12));
    assert_eq!(place(positions.value(second.key("e"))), (5, 9));
}

#[test]
fn what_has_no_place_has_that_of_what_is_around_it() {
    let positions = document("base: &b\n  x: {y: 1}\nuse:\n  <<: *b\nalias: *b\n").positions;
    let root = At::ROOT;
    let (using, alias) = (root.key("use"), root.key("alias"));
    let x = alias.key("x");
    assert_eq!(place(positions.value(using.key("x"))), place(positions.value(using)));
    assert_eq!(place(positions.value(x.key("y"))), (5, 8));
    assert_eq!(place(positions.value(root.key("nowhere"))), (1, 1));
    assert_eq!(place(Positions::default().value(root.key("nowhere"))), (1, 1));
}

#[test]
fn a_missing_value_is_where_its_key_is() {
    let positions = document("a:\n\n\nb: 1\nc:\n  -\n  - 2\n").positions;
    let root = At::ROOT;
    assert_eq!(place(positions.value(root.key("a"))), (1, 1));
    assert_eq!(place(positions.value(root.key("c").item(0))), (6, 3));
}

#[test]
fn columns_count_characters_whatever_the_bytes() {
    let positions = document("\u{feff}{ä: \"öü\", b: 1}\r\n").positions;
    let root = At::ROOT;
    assert_eq!(place(positions.key(root.key("b"))), (1, 11));
    assert_eq!(place(positions.value(root.key("b"))), (1, 14));
}

#[test]
fn merge_keys_are_merged() {
    let value = document("base: &b {x: 1, y: 2}\nuse: {<<: *b, y: 3}\n").value;
    assert_eq!(value["use"]["x"], 1);
    assert_eq!(value["use"]["y"], 3);
}

#[test]
fn all_duplicates_are_named() {
    let problems = said("a: 1\nb: {c: 1, c: 2}\na: 2\n");
    assert_eq!(
        problems,
        ["w:2:11: b.c: duplicate key `c` (first in line 2)", "w:3:1: a: duplicate key `a` (first in line 1)",]
    );
}

#[test]
fn what_is_not_yaml_has_a_place() {
    for text in
        ["a: [", "a: \"", "{", "a: b: c", "\t- a", "a: @", "%FOO", "a: &", "- a\nb", "*x", "a: |\n\t x\n y"]
    {
        if let Err(problems) = parse(text, Path::new("w")) {
            assert!(problems[0].line > 0, "{text:?}: {}", problems[0]);
        }
    }
    assert_eq!(said("a: [\n")[0].split(": ").next(), Some("w:2:1"));
}

/// Each of these inputs costs a naive parser minutes, gigabytes or a stack overflow.
#[test]
fn monstrous_files_are_refused_at_once() {
    let mebibyte = 1 << 20;
    let started = start();
    for (open, close) in [
        ("[", "]"),
        ("{a: ", "}"),
        ("- ", ""),
        ("? ", ""),
        ("[{", ""),
        ("a: [", ""),
        ("'[", ""),
        ("&a [", ""),
    ] {
        let open = open.repeat(mebibyte / open.len());
        assert!(parse(&open, Path::new("w")).is_err());
        let both = open[..mebibyte / 2].to_owned() + &close.repeat(mebibyte / 2);
        assert!(parse(&both, Path::new("w")).is_err());
    }
    let mut stairs = String::new();
    for depth in 0..1400 {
        stairs.push_str(&" ".repeat(depth));
        stairs.push_str("a:\n");
    }
    assert!(said(&stairs)[0].ends_with("nested more than 64 levels deep"));
    assert!(started() < Duration::from_secs(20), "{:?}", started());
}

#[test]
fn long_but_shallow_files_are_read_in_time() {
    let mebibyte = 1 << 20;
    let started = start();
    let long = format!("{}[{}]", "[".repeat(60), "a,".repeat(mebibyte / 2 - 70)) + &"]".repeat(60);
    assert!(parse(&long, Path::new("w")).is_ok());
    assert!(parse(&format!("a: \"{}\"", "x".repeat(mebibyte)), Path::new("w")).is_ok());
    assert!(parse(&"- a\n".repeat(mebibyte / 4), Path::new("w")).is_ok());
    let keys: String = (0..mebibyte / 12).map(|number| format!("k{number:07}: 1\n")).collect();
    assert!(parse(&keys, Path::new("w")).is_ok());
    assert!(started() < Duration::from_secs(20), "{:?}", started());
}

#[expect(clippy::disallowed_methods, reason = "measures how long the parser takes")]
fn start() -> impl Fn() -> Duration {
    let started = Instant::now();
    move || started.elapsed()
}

#[test]
fn aliases_that_multiply_are_refused() {
    let mut text = "a: &a [x,x,x,x,x,x,x,x,x,x]\n".to_owned();
    for (from, to) in ["ab", "bc", "cd", "de", "ef", "fg", "gh"].map(|pair| pair.split_at(1)) {
        text.push_str(&format!("{to}: &{to} [{}]\n", vec![format!("*{from}"); 10].join(",")));
    }
    assert_eq!(said(&text), ["w:1:1: aliases expand to more than a million values"]);
}

/// Parses a text with `serde_yaml` alone.
fn by_serde(text: &str) -> Option<Value> {
    let mut value: Value = serde_yaml::from_str(text).ok()?;
    value.apply_merge().ok()?;
    Some(value)
}

#[test]
fn every_configuration_is_what_serde_yaml_reads() {
    let mut seen = 0;
    for directory in ["config", "tests/config"] {
        let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join(directory);
        for entry in std::fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            let Ok(text) = std::fs::read_to_string(&path) else { continue };
            let text = text.trim_start_matches('\u{feff}');
            let Ok(document) = parse(text, &path) else { continue };
            assert_eq!(Some(document.value), by_serde(text), "{}", path.display());
            seen += 1;
        }
    }
    assert!(seen > 400, "{seen}");
}

proptest! {
    #[test]
    fn a_text_that_both_read_is_the_same_to_both(
        pieces in prop::collection::vec(prop::sample::select(&PIECES[..]), 0..24),
    ) {
        let text = pieces.concat();
        // libyaml does not accept a block scalar in the first column as a whole document.
        if let (Ok(document), Some(value)) = (parse(&text, Path::new("w")), by_serde(&text))
            && !value.is_string()
        {
            prop_assert_eq!(format!("{:?}", document.value), format!("{value:?}"), "{}", text);
        }
    }

    #[test]
    fn a_scalar_is_what_serde_yaml_reads(text in "[-+.~0-9a-fA-FxoblnuytrsifNI_eE]{0,12}|[-+]?(0x|0o|0b)?[0-9]{1,45}") {
        let tagged = ["", "!!int ", "!!float ", "!!bool ", "!!null ", "!!str ", "!own ", "! "];
        for text in tagged.map(|tag| format!("a: {tag}{text}")) {
            let ours = parse(&text, Path::new("w")).ok().map(|document| format!("{:?}", document.value));
            prop_assert_eq!(ours, by_serde(&text).map(|value| format!("{value:?}")), "{}", text);
        }
    }
}

/// Pieces of YAML syntax.
const PIECES: [&str; 40] = [
    "a", "b: ", "c:\n", "\n", "  ", " ", "- ", "[", "]", "{", "}", ", ", "? ", "&x ", "*x", "&y ", "*y",
    "<<: ", "'", "\"", "|\n", ">-\n", "#", "\t", "1", "-0x1f", "01", ".5e3", "true", "~", "!!str ", "!own ",
    "---", "...", ":", "\\", "%", "ä", "\r\n", "null",
];
