//! Fields of bodies in logs: `--field` says where they are.

use serde_json::{Value, json};

use super::{Workplace, replay, text};

const OPENAI: &str = "{ tokens: openai, estimate: { default: 40, prompt: 2 }, max: 90 }";

/// Returns a line for each of these records, a second apart.
fn log(path: &str, records: &[Value]) -> String {
    let line = |(second, record): (usize, &Value)| {
        let mut line = json!({ "ts": 1_800_000_000 + second, "method": "POST", "path": path, "status": 200 });
        line.as_object_mut().unwrap().extend(record.as_object().unwrap().clone());
        format!("{line}\n")
    };
    records.iter().enumerate().map(line).collect()
}

/// Replays records with one rule and these mappings; returns the report of the rule.
#[track_caller]
fn rule_with(rule: &str, mappings: &[&str], records: &[Value]) -> Value {
    let place = Workplace::new();
    let rules = place.rules("weir.yaml", &format!("  - {rule}\n"));
    let log = place.write("log", log("/a", records));
    let fields = mappings.iter().flat_map(|mapping| ["--field", mapping]);
    let arguments: Vec<&str> = ["-c", &rules].into_iter().chain(fields).chain([&*log]).collect();
    place.replay(&arguments)["rules"][0].clone()
}

/// Returns the numbers of allowed and of limited requests.
fn outcomes(rule: &Value) -> (u64, u64) {
    let number = |outcome: &str| rule["outcomes"][outcome].as_u64().unwrap();
    (number("allowed"), number("limited"))
}

fn with(key: &str, value: impl Into<Value>) -> Value {
    let value: Value = value.into();
    json!({ key: value })
}

#[test]
fn logged_fields_are_parts_of_keys() {
    let rule = "{ name: a, key: { json: model }, limit: 1/h }";
    let records = ["m1", "m1", "m2"].map(|model| json!({ "body": { "model": model } }));
    let report = rule_with(rule, &["json:model=body.model"], &records);
    assert_eq!(outcomes(&report), (2, 1));
    assert_eq!((&report["top"][0]["key"], &report["undecidable"]), (&json!("m1"), &json!([])));
    // As in live bodies, a number has one spelling, and an object is no value.
    let records = [json!(1), json!(1.0), json!("1"), json!({ "a": 1 }), json!(null)].map(|id| with("id", id));
    let report = rule_with(
        "{ name: a, key: { json: \"user.ids[1]\" }, limit: 1/h }",
        &["json:user.ids[1]=id"],
        &records,
    );
    assert_eq!(outcomes(&report), (1, 2));
    assert_eq!(report["undecidable"], json!([]));
    let records = ["Ann B", "Ann B", "-"].map(|user| with("user", user));
    let report =
        rule_with("{ name: a, key: { form: username }, limit: 1/h }", &["form:username=user"], &records);
    assert_eq!((outcomes(&report), &report["top"][0]["key"]), ((1, 1), &json!("Ann B")));
}

#[test]
fn logged_fields_are_conditions_and_exceptions() {
    let rule = "{ name: a, match: { json: { model: \"~^gpt-\" } }, except: { json: { kind: test } }, key: [], limit: 1/h }";
    let record = |model: &str, kind: &str| json!({ "m": model, "k": kind });
    let records = [
        record("gpt-5", ""),
        record("other", ""),
        record("gpt-5", "test"),
        record("gpt-4", "x"),
        record("gpt-4", ""),
    ];
    let report = rule_with(rule, &["json:model=m", "json:kind=k"], &records);
    assert_eq!(outcomes(&report), (1, 2));
    assert_eq!(report["undecidable"], json!([]));
}

#[test]
fn logged_fields_are_costs() {
    let rule =
        "{ name: a, key: [], limit: 10/h, algorithm: fixed_window, cost: { json: n, default: 3, max: 5 } }";
    let records = [json!(4), json!("2"), json!(null), json!(9)].map(|n| with("n", n));
    assert_eq!(outcomes(&rule_with(rule, &["json:n=n"], &records)), (3, 1), "4, 2, 3 and at most 5");
    let rule = "{ name: a, key: [], limit: 300/h, algorithm: fixed_window, cost: { graphql: complexity, lists: [first], max: 250 } }";
    let query = |query: &str| with("query", query);
    let records = [
        query("{ users(first: 20) { name posts(first: 5) { id } } }"),
        query("{ a b }"),
        query("{ a("),
        query("{ users(first: 200) { id } }"),
    ];
    let report = rule_with(rule, &["json:query=query"], &records);
    assert_eq!(outcomes(&report), (2, 1), "141, 2 and 201");
    assert_eq!(report["outcomes"]["denied"], 1, "a document that is not valid");
    assert_eq!(report["undecidable"], json!([]));
}

#[test]
fn graphql_request_in_the_url_needs_no_option() {
    let place = Workplace::new();
    let rule = "  - { name: a, key: [], limit: 10/h, algorithm: fixed_window, cost: { graphql: complexity, max: 10 } }\n";
    let rules = place.rules("weir.yaml", rule);
    let lines = log("/graphql?query=%7Ba%20b%20c%20d%7D", &[json!({}), json!({}), json!({})]);
    let report = place.replay(&["-c", &rules, &place.write("log", lines)]);
    assert_eq!(outcomes(&report["rules"][0]), (2, 1));
    assert_eq!(report["rules"][0]["undecidable"], json!([]));
    let without = place.replay(&["-c", &rules, &place.write("log", log("/graphql", &[json!({})]))]);
    let missing = &without["rules"][0]["undecidable"][0];
    assert_eq!(missing["attribute"], "the GraphQL request");
    assert_eq!(missing["fields"], json!(["json:query=KEY"]));
}

#[test]
fn logged_fields_make_the_estimate() {
    let rule = format!("{{ name: a, key: [], limit: 100/h, algorithm: fixed_window, cost: {OPENAI} }}");
    // The responses have no tokens, so that what is reserved is charged.
    let usage = "response_json:usage.total_tokens=tokens";
    let record = |max: Value, n: Value| json!({ "max": max, "n": n, "bytes_received": 20, "tokens": null, "messages": ["hi"] });
    let mappings = ["json:max_tokens=max", "json:n=n", "json:messages=messages", usage];
    let records =
        [record(json!(20), json!(2)), record(json!(null), json!(null)), record(json!(1), json!(null))];
    let report = rule_with(&rule, &mappings, &records);
    assert_eq!(outcomes(&report), (2, 1), "20 × 2 + 10, 40 + 10, and 1 + 10");
    assert_eq!(report["undecidable"], json!([]));
    let records = [json!({ "max": 20, "tokens": null, "messages": ["hi"] })];
    let report = rule_with(&rule, &mappings, &records);
    let missing = |index: usize| report["undecidable"][index]["attribute"].as_str().unwrap();
    assert_eq!((missing(0), missing(1)), ("n or best_of of the body", "the size of the body"));
}

#[test]
fn logged_numbers_of_responses_are_the_cost() {
    let cost = "response_json: { usage.in: 1, usage.out: 4 }, estimate: 30, max: 60";
    let rule = format!("{{ name: a, key: [], limit: 100/h, algorithm: fixed_window, cost: {{ {cost} }} }}");
    let mappings = ["response_json:usage.in=usage.prompt", "response_json:usage.out=usage.answer"];
    let record = |prompt: Value, answer: Value| json!({ "usage": { "prompt": prompt, "answer": answer } });
    let two = [record(json!(10), json!(10)), record(json!("10"), json!("10")), record(json!(1), json!(1))];
    assert_eq!(outcomes(&rule_with(&rule, &mappings, &two)), (2, 1), "two of 50");
    let most = [record(json!(1), json!(1000)), record(json!(0), json!(10)), record(json!(0), json!(0))];
    assert_eq!(outcomes(&rule_with(&rule, &mappings, &most)), (2, 1), "the maximum, and 40");
    let absent = [record(json!(null), json!(null)), record(json!(1), json!(0)), record(json!(0), json!(0))];
    let report = rule_with(&rule, &mappings, &absent);
    assert_eq!((outcomes(&report), &report["undecidable"]), ((3, 0), &json!([])), "the estimate, and 1");
    let partial = rule_with(&rule, &mappings[..1], &two);
    let missing = &partial["undecidable"][0];
    assert_eq!(missing["attribute"], "usage.out of the body of the response");
    assert_eq!(missing["fields"], json!(["response_json:usage.out=KEY", "cost=KEY"]));
    assert_eq!(missing["requests"], 3);
}

#[test]
fn fields_that_a_log_lacks_are_reported_with_their_option() {
    let place = Workplace::new();
    let rule = "{ name: a, key: { json: model }, limit: 1/h }";
    let rules = place.rules("weir.yaml", &format!("  - {rule}\n"));
    let lines = log("/a", &[json!({ "model": "m" }), json!({ "model": ["m", { "x": 1 }] }), json!({})]);
    let log = place.write("log", lines);
    let text_of = |arguments: &[&str]| {
        text(&replay(&[&["-c", &rules][..], arguments, &[&log]].concat()).stdout).to_owned()
    };
    let expected = "needs model of the body, which the log does not have, for 3 requests: the key is incomplete, \
        on_missing: skip was applied; if a JSON log has it, name its key with --field json:model=KEY\n";
    let without = text_of(&[]);
    assert!(without.contains(expected), "{without}");
    let named = text_of(&["--field", "json:model=model"]);
    assert!(named.contains("for 1 requests: the key is incomplete"), "{named}");
    let report = rule_with(rule, &[], &[json!({ "bytes_received": 0 })]);
    assert_eq!(report["undecidable"], json!([]), "there was no body");
}

#[test]
fn both_rule_files_read_their_own_fields() {
    let place = Workplace::new();
    let old = place.rules("old.yaml", "  - { name: a, key: { json: user }, limit: 1/h }\n");
    let new =
        place.rules("new.yaml", "  - { name: a, key: [{ json: user }, { json: model }], limit: 1/h }\n");
    let records = ["m1", "m2", "m2"].map(|model| json!({ "m": model, "u": "ann" }));
    let log = place.write("log", log("/a", &records));
    let fields = ["--field", "json:model=m", "--field", "json:user=u"];
    let report = place.replay(&[&["-c", &new, "--against", &old][..], &fields, &[&log]].concat());
    let change = &report["comparison"]["rules"][0];
    assert_eq!((&change["before"], &change["after"]), (&json!(2), &json!(1)));
}

#[test]
fn mistakes_in_the_option_are_explained() {
    let place = Workplace::new();
    let rules =
        place.rules("weir.yaml", "  - { name: a, key: [{ json: model }, { form: user }], limit: 1/h }\n");
    let without = place.rules("without.yaml", "  - { name: a, key: [], limit: 1/h }\n");
    let log = place.write("log", log("/a", &[json!({})]));
    for (config, mapping, message) in [
        (&rules, "json:modle=model", "no rule reads json:modle, but json:model and form:user"),
        (&rules, "form:model=model", "no rule reads form:model, but json:model and form:user"),
        (&rules, "json:model", "expected NAME=KEY"),
        (&rules, "json:model=", "expected NAME=KEY"),
        (&rules, "json:a[=x", "not a path: the bracket is not closed"),
        (
            &rules,
            "body:model=x",
            "expected header:NAME, json:PATH, form:NAME, response_json:PATH or one of time,",
        ),
        (&rules, "response_json:model=x", "no rule reads response_json:model"),
        (&without, "json:model=model", "no rule reads json:model, or any other field of bodies"),
    ] {
        let output = replay(&["-c", config, "--field", mapping, &log]);
        assert_eq!(output.status.code(), Some(2), "{mapping}: {}", text(&output.stderr));
        let expected = format!("weir: --field {mapping}: ");
        let shown = text(&output.stderr);
        assert!(shown.starts_with(&expected) && shown.contains(message), "{mapping}: {shown}");
    }
    let output = replay(&["-c", &rules, "--field", "json:model=x", "--field", "form:user=x", &log]);
    assert_eq!(output.status.code(), Some(2));
    assert!(
        text(&output.stderr).contains("the key \"x\" is already that of json:model"),
        "{}",
        text(&output.stderr)
    );
}
