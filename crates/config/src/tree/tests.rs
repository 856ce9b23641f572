use proptest::prelude::*;

use super::*;
use crate::config_path::ConfigPath;

fn parse_valid(text: &str) -> ParsedText {
    parse(text, Path::new("weir.yaml")).unwrap()
}

fn error_messages(text: &str) -> Vec<String> {
    parse(text, Path::new("w")).unwrap_err().iter().map(ToString::to_string).collect()
}

fn line_and_column(position: Position) -> (usize, usize) {
    (position.line, position.column)
}

#[test]
fn every_key_and_value_has_a_position() {
    let positions =
        parse_valid("a: 1\nb:\n  - c: x\n    d: [y, \"z\"]\n  - {e: *no}\n".replace("*no", "w").as_str())
            .positions;
    let root = ConfigPath::ROOT;
    let b = root.key("b");
    let (first, second) = (b.item(0), b.item(1));
    let d = first.key("d");
    assert_eq!(line_and_column(positions.value_position(root.key("a"))), (1, 4));
    assert_eq!(line_and_column(positions.key_position(root.key("b"))), (2, 1));
    assert_eq!(line_and_column(positions.value_position(b)), (3, 3));
    assert_eq!(line_and_column(positions.value_position(first)), (3, 5));
    assert_eq!(line_and_column(positions.key_position(d)), (4, 5));
    assert_eq!(line_and_column(positions.value_position(d.item(1))), (4, 12));
    assert_eq!(line_and_column(positions.value_position(second.key("e"))), (5, 9));
}

#[test]
fn aliased_and_unknown_values_have_position_of_container() {
    let positions = parse_valid("base: &b\n  x: {y: 1}\nuse:\n  <<: *b\nalias: *b\n").positions;
    let root = ConfigPath::ROOT;
    let (using, alias) = (root.key("use"), root.key("alias"));
    let x = alias.key("x");
    assert_eq!(
        line_and_column(positions.value_position(using.key("x"))),
        line_and_column(positions.value_position(using))
    );
    assert_eq!(line_and_column(positions.value_position(x.key("y"))), (5, 8));
    assert_eq!(line_and_column(positions.value_position(root.key("nowhere"))), (1, 1));
    assert_eq!(line_and_column(Positions::default().value_position(root.key("nowhere"))), (1, 1));
}

#[test]
fn missing_value_has_position_of_its_key() {
    let positions = parse_valid("a:\n\n\nb: 1\nc:\n  -\n  - 2\n").positions;
    let root = ConfigPath::ROOT;
    assert_eq!(line_and_column(positions.value_position(root.key("a"))), (1, 1));
    assert_eq!(line_and_column(positions.value_position(root.key("c").item(0))), (6, 3));
}

#[test]
fn columns_count_characters_not_bytes() {
    let positions = parse_valid("\u{feff}{ä: \"öü\", b: 1}\r\n").positions;
    let root = ConfigPath::ROOT;
    assert_eq!(line_and_column(positions.key_position(root.key("b"))), (1, 11));
    assert_eq!(line_and_column(positions.value_position(root.key("b"))), (1, 14));
}

#[test]
fn merge_keys_are_merged() {
    let value = parse_valid("base: &b {x: 1, y: 2}\nuse: {<<: *b, y: 3}\n").value;
    assert_eq!(value["use"]["x"], 1);
    assert_eq!(value["use"]["y"], 3);
}

#[test]
fn all_duplicate_keys_are_reported() {
    let problems = error_messages("a: 1\nb: {c: 1, c: 2}\na: 2\n");
    assert_eq!(
        problems,
        ["w:2:11: b.c: duplicate key `c` (first in line 2)", "w:3:1: a: duplicate key `a` (first in line 1)",]
    );
}

#[test]
fn invalid_yaml_is_reported_with_position() {
    for text in
        ["a: [", "a: \"", "{", "a: b: c", "\t- a", "a: @", "%FOO", "a: &", "- a\nb", "*x", "a: |\n\t x\n y"]
    {
        if let Err(problems) = parse(text, Path::new("w")) {
            assert!(problems[0].line > 0, "{text:?}: {}", problems[0]);
        }
    }
    assert_eq!(error_messages("a: [\n")[0].split(": ").next(), Some("w:2:1"));
}

/// Each of these inputs costs a naive parser minutes, gigabytes or a stack overflow.
#[test]
fn deeply_nested_yaml_is_rejected() {
    let mebibyte = 1 << 20;
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
    assert!(error_messages(&stairs)[0].ends_with("nested more than 64 levels deep"));
}

/// In a time that grows with the length: a parser that is quadratic in it would not end in a test's time.
#[test]
fn long_shallow_yaml_is_parsed() {
    let mebibyte = 1 << 20;
    let long = format!("{}[{}]", "[".repeat(60), "a,".repeat(mebibyte / 2 - 70)) + &"]".repeat(60);
    assert!(parse(&long, Path::new("w")).is_ok());
    assert!(parse(&format!("a: \"{}\"", "x".repeat(mebibyte)), Path::new("w")).is_ok());
    assert!(parse(&"- a\n".repeat(mebibyte / 4), Path::new("w")).is_ok());
    let keys: String = (0..mebibyte / 12).map(|number| format!("k{number:07}: 1\n")).collect();
    assert!(parse(&keys, Path::new("w")).is_ok());
}

#[test]
fn multiplying_yaml_aliases_are_rejected() {
    let mut text = "a: &a [x,x,x,x,x,x,x,x,x,x]\n".to_owned();
    for (from, to) in ["ab", "bc", "cd", "de", "ef", "fg", "gh"].map(|pair| pair.split_at(1)) {
        text.push_str(&format!("{to}: &{to} [{}]\n", vec![format!("*{from}"); 10].join(",")));
    }
    assert_eq!(error_messages(&text), ["w:1:1: aliases expand to more than a million values"]);
}

/// Parses a text with `serde_yaml` alone.
fn parse_with_serde_yaml(text: &str) -> Option<Value> {
    let mut value: Value = serde_yaml::from_str(text).ok()?;
    value.apply_merge().ok()?;
    Some(value)
}

#[test]
fn parsed_example_configs_equal_serde_yaml() {
    let mut seen = 0;
    for directory in ["config", "tests/config"] {
        let directory = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")).join(directory);
        for entry in std::fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            let Ok(text) = std::fs::read_to_string(&path) else { continue };
            let text = text.trim_start_matches('\u{feff}');
            let Ok(document) = parse(text, &path) else { continue };
            assert_eq!(Some(document.value), parse_with_serde_yaml(text), "{}", path.display());
            seen += 1;
        }
    }
    assert!(seen > 400, "{seen}");
}

proptest! {
    #[test]
    fn parsed_yaml_equals_serde_yaml(
        pieces in prop::collection::vec(prop::sample::select(&YAML_PIECES[..]), 0..24),
    ) {
        let text = pieces.concat();
        // libyaml does not accept a block scalar in the first column as a whole document.
        if let (Ok(document), Some(value)) = (parse(&text, Path::new("w")), parse_with_serde_yaml(&text))
            && !value.is_string()
        {
            prop_assert_eq!(format!("{:?}", document.value), format!("{value:?}"), "{}", text);
        }
    }

    #[test]
    fn parsed_yaml_scalar_equals_serde_yaml(text in "[-+.~0-9a-fA-FxoblnuytrsifNI_eE]{0,12}|[-+]?(0x|0o|0b)?[0-9]{1,45}") {
        let tagged = ["", "!!int ", "!!float ", "!!bool ", "!!null ", "!!str ", "!own ", "! "];
        for text in tagged.map(|tag| format!("a: {tag}{text}")) {
            let ours = parse(&text, Path::new("w")).ok().map(|document| format!("{:?}", document.value));
            prop_assert_eq!(ours, parse_with_serde_yaml(&text).map(|value| format!("{value:?}")), "{}", text);
        }
    }
}

/// Pieces of YAML syntax.
const YAML_PIECES: [&str; 40] = [
    "a", "b: ", "c:\n", "\n", "  ", " ", "- ", "[", "]", "{", "}", ", ", "? ", "&x ", "*x", "&y ", "*y",
    "<<: ", "'", "\"", "|\n", ">-\n", "#", "\t", "1", "-0x1f", "01", ".5e3", "true", "~", "!!str ", "!own ",
    "---", "...", ":", "\\", "%", "ä", "\r\n", "null",
];
