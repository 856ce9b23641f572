use std::fmt::Write as _;

use proptest::prelude::*;

use super::*;
use crate::fields::{FieldMask, Record};
use crate::reader::BodyReader;

fn complexity() -> GraphqlComplexity {
    GraphqlComplexity { max_depth: 15, lists: ["first", "last", "limit"].map(Into::into).into() }
}

fn measure_request(
    query: &str,
    operation_name: Option<&str>,
    variables: Option<&str>,
) -> Result<u64, Unreadable> {
    let request = GraphqlRequest { query, operation_name, variables };
    measure(&complexity(), &request, &mut MAX_TOKENS.clone())
}

fn units(query: &str) -> Result<u64, Unreadable> {
    measure_request(query, None, None)
}

#[test]
fn fields_count_once_per_element_of_their_lists() {
    for (query, expected) in [
        ("{ a }", 1),
        ("{ a b: a c }", 3),
        ("query Q { a { b c { d } } }", 4),
        ("{ users(first: 10) { name email } }", 21),
        ("{ users(last: 2) { posts(limit: 5) { id } } }", 1 + 2 * (1 + 5)),
        ("{ users(first: 3, last: 7) { id } }", 8),
        ("{ users(first: 0) { id } }", 2),
        ("{ users(first: null) { id } }", 2),
        ("{ users(first: 10, # ten\n after: \"first: 99\") { id } }", 11),
        ("{ users(other: 10) { id } }", 2),
        ("{ leaf(first: 100) }", 1),
        ("{ ... on A { a } ... @include(if: false) { b } }", 2),
        ("mutation M($x: Int = 3) { a(first: $x) { b } }", 4),
        ("{ a ...F } fragment F on A { b ...G } fragment G on A { c d }", 4),
        ("{ __schema { types { name } } }", 3),
    ] {
        assert_eq!(units(query), Ok(expected), "{query}");
    }
}

#[test]
fn what_is_no_number_counts_as_the_highest() {
    for argument in ["-1", "\"10\"", "1.5", "99999999999999999999999", "ALL", "[1]", "{n: 1}", "true"] {
        assert_eq!(units(&format!("{{ users(first: {argument}) {{ id }} }}")), Ok(u64::MAX), "{argument}");
    }
}

#[test]
fn variables_state_numbers() {
    let query = "query Q($n: Int = 50, $m: Int) { a(first: $n) { b(limit: $m) { c } } }";
    let of = |variables: Option<&str>| measure_request(query, None, variables);
    assert_eq!(of(None), Ok(1 + 50 * 2));
    assert_eq!(of(Some(r#"{"n": 2, "m": 3}"#)), Ok(1 + 2 * (1 + 3)));
    assert_eq!(of(Some(r#"{"\u006e": 2e0, "x": {"m": 100}, "m": null}"#)), Ok(1 + 2 * 2));
    assert_eq!(of(Some(r#"{"n": "2"}"#)), Ok(u64::MAX));
    assert_eq!(of(Some(r#"{"n": 1, "n": 100}"#)), Err(Unreadable::Duplicate));
    assert_eq!(of(Some(r#"{"n": 1, "N": 100}"#)), Err(Unreadable::Duplicate));
    assert_eq!(of(Some("[]")), Err(Unreadable::Graphql));
    assert_eq!(of(Some("{\"n\": 1")), Err(Unreadable::Invalid));
    assert_eq!(of(Some("nonsense")), Err(Unreadable::Graphql));
    assert_eq!(measure_request("{ a }", None, Some("nonsense")), Ok(1), "no argument depends on them");
}

#[test]
fn operation_name_selects() {
    let query = "query A { a } query B { a b ...F } fragment F on X { c }";
    assert_eq!(measure_request(query, Some("A"), None), Ok(1));
    assert_eq!(measure_request(query, Some("B"), None), Ok(3));
    assert_eq!(measure_request(query, None, None), Err(Unreadable::Graphql), "services differ");
    assert_eq!(measure_request(query, Some("C"), None), Err(Unreadable::Graphql));
}

#[test]
fn what_no_service_executes_is_unreadable() {
    for query in [
        " ",
        "{",
        "{ }",
        "{ a } }",
        "nonsense",
        "{ a(first: ) }",
        "fragment F on A { a }",
        "type A { a: Int }",
        "{ a } type A { a: Int }",
        "{ ...F }",
        "{ ...F } fragment F on A { b } fragment F on A { c }",
        "{ ...F } fragment F on A { ...F }",
        "{ ...F } fragment F on A { b { ...G } } fragment G on A { ...F }",
    ] {
        assert_eq!(units(query), Err(Unreadable::Graphql), "{query}");
    }
}

#[test]
fn depth_and_length_are_bounded() {
    let nested = |depth: usize| format!("{{{}a{}}}", " a {".repeat(depth - 1), "}".repeat(depth - 1));
    assert_eq!(units(&nested(15)), Ok(15));
    assert_eq!(units(&nested(16)), Err(Unreadable::GraphqlTooLarge));
    assert_eq!(units(&nested(100_000)), Err(Unreadable::GraphqlTooLarge));
    let in_fragments = "{ ...F } fragment F on A { a { a { a { a { a { a { a { ...G } } } } } } } } fragment G on A { a { a { a { a { a { a { a { a { a } } } } } } } } }";
    assert_eq!(units(in_fragments), Err(Unreadable::GraphqlTooLarge));
    assert_eq!(units(&format!("{{ {} }}", "a ".repeat(MAX_TOKENS))), Err(Unreadable::GraphqlTooLarge));
    assert_eq!(
        units(&format!("{{ a(x: {}1{}) }}", "[".repeat(500), "]".repeat(500))),
        Err(Unreadable::GraphqlTooLarge)
    );
    let chain = (0..1000).fold("{ ...F0 }".to_owned(), |mut text, n| {
        let _ = write!(text, " fragment F{n} on A {{ ...F{} }}", n + 1);
        text
    });
    assert_eq!(units(&(chain + " fragment F1000 on A { a }")), Err(Unreadable::GraphqlTooLarge));
    assert_eq!(
        units(&format!("{{ ...{}a{} }}", " on A { ...".repeat(150).trim_end_matches('.'), "}".repeat(150))),
        Err(Unreadable::GraphqlTooLarge)
    );
}

fn read_body(body: &str, url: Option<&str>) -> Result<Vec<Option<String>>, Unreadable> {
    let fields = FieldSet::new([
        FieldName::Json(Arc::new("variables.n".parse().expect("a path"))),
        FieldName::Graphql(Arc::new(complexity())),
    ]);
    let url = url.map_or(Ok(None), UrlParameters::read)?;
    let read = |size: usize| {
        let mut reader = BodyReader::new(&fields, FieldMask::of(1), [b"application/json".as_slice()])?;
        for piece in body.as_bytes().chunks(size) {
            reader.read(&fields, piece)?;
        }
        reader.finish(&fields, url.as_ref())
    };
    let whole = read(body.len());
    for size in 1..4 {
        assert_eq!(read(size), whole, "in pieces of {size} bytes");
    }
    let text = |record: &Record| record[1].as_ref().map(|value| value.text.to_string());
    Ok(whole?.iter().map(text).collect())
}

#[test]
fn complexity_is_a_field_of_each_element() {
    let some = |text: &str| Some(text.to_owned());
    let users = r#""query": "query($n: Int) { users(first: $n) { name } }""#;
    for (body, expected) in [
        (
            format!(
                "{{{users}, \"variables\": {{\"x\": [{{}}, \"é}}\"], \"n\": 4}}, \"operationName\": null}}"
            ),
            vec![some("5")],
        ),
        (format!("{{{users}, \"variables\": \"{{\\\"n\\\": 4}}\"}}"), vec![some("5")]),
        (
            format!(
                "[{{{users}}}, {{\"id\": 1}}, {{\"query\": \"\"}}, {{{users}, \"variables\": {{\"n\": 2}}}}]"
            ),
            vec![some("2"), None, None, some("3")],
        ),
    ] {
        assert_eq!(read_body(&body, None), Ok(expected), "{body}");
    }
    assert_eq!(read_body(&format!("{{{users}, \"variables\": 5}}"), None), Err(Unreadable::Graphql));
    assert_eq!(
        read_body(&format!("{{{users}, \"variables\": {{\"n\": 1, \"n\": 2}}}}"), None),
        Err(Unreadable::Duplicate)
    );
}

#[test]
fn url_and_body_may_not_differ() {
    let body = r#"{"query": "query A($n: Int = 9) { a(first: $n) { b } }", "operationName": "A"}"#;
    for same in ["operationName=A", "x=1", "query=", "query=query+A($n:+Int+%3D+9)+{+a(first:+$n)+{+b+}+}"] {
        assert_eq!(read_body(body, Some(same)), Ok(vec![Some("10".to_owned())]), "{same}");
    }
    for other in ["operationName=B", "query={a}", "variables={\"n\":1}", "operationName=A&operationName=A"] {
        assert_eq!(read_body(body, Some(other)), Err(Unreadable::Duplicate), "{other}");
    }
    assert_eq!(read_body("{}", Some("query={a+b}")), Ok(vec![Some("2".to_owned())]));
    let url = "query=query+A($n:+Int+%3D+9)+{+a(first:+$n)+{+b+}+}";
    let variables = r#"{"variables": {"n": 1}}"#;
    assert_eq!(
        read_body(variables, Some(url)),
        Err(Unreadable::Duplicate),
        "a service may read the URL only"
    );
    let url = format!("{url}&variables={{\"n\":1}}");
    let body = r#"{"query": "query A($n: Int = 9) { a(first: $n) { b } }"}"#;
    assert_eq!(read_body(body, Some(&url)), Err(Unreadable::Duplicate), "a service may read the body only");
}

#[test]
fn documents_of_a_batch_have_tokens_together() {
    let element = format!(r#"{{"query": "{{ {} }}"}}"#, "a ".repeat(MAX_TOKENS / 8));
    let batch = |count: usize| format!("[{}]", vec![element.as_str(); count].join(","));
    assert_eq!(read_body(&batch(3), None).map(|units| units.len()), Ok(3));
    assert_eq!(read_body(&batch(5), None), Err(Unreadable::GraphqlTooLarge));
}

#[test]
fn fragment_bombs_saturate() {
    let levels = 100;
    let mut text = "{ ...F0 }".to_owned();
    for level in 0..levels {
        let _ = write!(text, " fragment F{level} on A {{ {} }}", format!("...F{} ", level + 1).repeat(10));
    }
    let _ = write!(text, " fragment F{levels} on A {{ a }}");
    // Expanded, it has 10^100 fields.
    assert_eq!(units(&text), Ok(u64::MAX));
}

/// Pieces of documents, valid and not.
const PIECES: &[&str] = &[
    "{",
    "}",
    "(",
    ")",
    "[",
    "]",
    ":",
    "$",
    "@",
    "!",
    "=",
    "|",
    "&",
    "...",
    " ",
    ",",
    "\n",
    "#",
    "\"",
    "\"\"\"",
    "\\",
    "a",
    "first",
    "on",
    "fragment",
    "F",
    "query",
    "mutation",
    "type",
    "extend",
    "null",
    "true",
    "1",
    "-1",
    "1.5",
    "1e400",
    "\u{feff}",
    "é",
    "\0",
    "fragment F on A { ...F }",
    "{ a(first: 3) { b } }",
    "...F",
    "... on A { b }",
    "query Q($n: Int = 5) { a(first: $n) { b } }",
];

proptest! {
    #[test]
    fn no_text_panics(fragments in prop::collection::vec(prop::sample::select(PIECES), 0..40), spaced in any::<bool>()) {
        let text = fragments.join(if spaced { " " } else { "" });
        if let Ok(units) = units(&text) {
            prop_assert!(units > 0);
        }
    }

    #[test]
    fn any_text_is_measured_or_not(text in any::<String>()) {
        let _ = units(&text);
    }

    #[test]
    fn elements_multiply(one in 1_u32.., other in 1_u32..) {
        let query = format!("{{ a(first: {one}) {{ b(last: {other}) {{ c }} }} }}");
        let expected = 1 + u64::from(one).saturating_mul(1 + u64::from(other));
        prop_assert_eq!(units(&query), Ok(expected));
    }
}
