//! What is reserved: a number counts for the endpoint to which it belongs.

use super::super::start_with_rule;
use super::model;
use crate::support::{Client, Request, Weir};

/// A request without its maximum reserves 100 tokens.
fn rule(format: &str) -> String {
    format!(
        "{{ name: tokens, key: [], limit: 10000/d, algorithm: fixed_window, cost: {{ tokens: {format}, estimate: {{ default: 100 }}, \
         max: 5000 }} }}"
    )
}

/// Returns the units that a request with this path and body has reserved when its response begins.
fn reserved(weir: &Weir, path: &str, body: &str) -> u64 {
    let left = |request: &Request| {
        let request = request.clone().header("content-type", "application/json").header("x-body", "{}");
        Client::connect(weir.address()).fetch(&request).numeric_header("x-ratelimit-remaining")
    };
    // One whose fields are absent reserves the default, and is charged that.
    let before = left(&Request::post("/", "{}"));
    before - left(&Request::post(path, body))
}

#[test]
fn openai_maximum_belongs_to_its_endpoint() {
    let origin = model();
    let weir = start_with_rule(&origin, &rule("openai"));
    for (body, units) in [
        (r#"{"messages":[{}],"max_output_tokens":1}"#, 100),
        (r#"{"input":"x","max_tokens":1,"n_predict":1}"#, 100),
        (r#"{"input":[{"role":"user"}],"max_output_tokens":60}"#, 60),
        (r#"{"prompt":{"id":"stored"},"max_output_tokens":60}"#, 60),
        (r#"{"messages":[{}],"input":"x","max_output_tokens":1}"#, 100),
        (r#"{"messages":[{}],"input":"x","max_tokens":50,"max_output_tokens":70}"#, 70),
        (r#"{"messages":[{}],"max_tokens":0}"#, 100),
        (r#"{"messages":[{}],"max_tokens":null}"#, 100),
        (r#"{"messages":[{}],"max_tokens":1,"n_predict":40}"#, 40),
        (r#"{"messages":null,"max_tokens":5}"#, 100),
        (r#"{"max_tokens":5}"#, 100),
        (r#"{"max_tokens":300}"#, 300),
    ] {
        assert_eq!(reserved(&weir, "/", body), units, "{body}");
    }
}

#[test]
fn completions_are_multiplied() {
    let origin = model();
    let weir = start_with_rule(&origin, &rule("openai"));
    for (body, units) in [
        (r#"{"prompt":"x","max_tokens":10,"best_of":20,"n":2}"#, 200),
        (r#"{"prompt":"x","max_tokens":10,"best_of":1,"n":3}"#, 30),
        (r#"{"prompt":["a","b","c"],"max_tokens":10}"#, 30),
        (r#"{"prompt":[1,2,3],"max_tokens":10}"#, 10),
        (r#"{"prompt":[[1,2],[3]],"max_tokens":10,"n":2}"#, 40),
        (r#"{"prompt":[],"max_tokens":10}"#, 10),
    ] {
        assert_eq!(reserved(&weir, "/v1/completions", body), units, "{body}");
    }
}

#[test]
fn anthropic_maximum_belongs_to_its_endpoint() {
    let origin = model();
    let weir = start_with_rule(&origin, &rule("anthropic"));
    for (body, units) in [
        (r#"{"messages":[{}],"max_tokens":60}"#, 60),
        (r#"{"messages":[{}],"max_tokens_to_sample":1}"#, 100),
        (r#"{"prompt":"x","max_tokens":1,"max_tokens_to_sample":70}"#, 70),
        (r#"{"prompt":"x","max_tokens":1}"#, 100),
    ] {
        assert_eq!(reserved(&weir, "/", body), units, "{body}");
    }
}

#[test]
fn gemini_names_have_two_spellings() {
    let origin = model();
    let weir = start_with_rule(&origin, &rule("gemini"));
    for (config, max, candidates) in [
        ("generationConfig", "maxOutputTokens", "candidateCount"),
        ("generation_config", "max_output_tokens", "candidate_count"),
        ("generation_config", "maxOutputTokens", "candidate_count"),
        ("generationConfig", "max_output_tokens", "candidateCount"),
    ] {
        let body = format!(r#"{{"contents":[{{}}],"{config}":{{"{max}":300,"{candidates}":3}}}}"#);
        assert_eq!(reserved(&weir, "/", &body), 900, "{body}");
    }
    assert_eq!(reserved(&weir, "/", r#"{"generationConfig":{"maxOutputTokens":1}}"#), 100);
}

#[test]
fn bedrock_maximum_belongs_to_its_endpoint() {
    let origin = model();
    let weir = start_with_rule(&origin, &rule("bedrock"));
    let messages = r#"{"anthropic_version":"bedrock-2023-05-31","messages":[{}],"max_tokens":60}"#;
    for (endpoint, body, units) in [
        ("converse", r#"{"messages":[{}],"inferenceConfig":{"maxTokens":60}}"#, 60),
        ("converse-stream", r#"{"inferenceConfig":{"maxTokens":60}}"#, 60),
        ("converse", messages, 100),
        ("invoke", messages, 60),
        ("invoke-with-response-stream", messages, 60),
        ("invoke", r#"{"prompt":"x","max_gen_len":70}"#, 70),
        ("invoke", r#"{"inputText":"x","textGenerationConfig":{"maxTokenCount":80}}"#, 80),
        ("invoke", r#"{"prompt":"x","anthropic_version":"x","max_tokens":1}"#, 100),
        ("invoke", r#"{"messages":[{}],"max_tokens":1}"#, 100),
        ("other", r#"{"inferenceConfig":{"maxTokens":1}}"#, 100),
    ] {
        assert_eq!(reserved(&weir, &format!("/model/a%3A0/{endpoint}"), body), units, "{endpoint} {body}");
    }
}
