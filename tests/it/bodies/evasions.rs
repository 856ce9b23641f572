//! Bodies that some programs read in another way than others. None of them evades a rule.

use super::{RULES, form, json, statuses};
use crate::support::{Origin, Request, Weir, config};

/// Bodies that state the model in ways in which some programs read another value, or none.
fn evasions() -> Vec<(&'static str, Request)> {
    let utf16: Vec<u8> =
        r#"{"model":"gpt-4","user":"eve"}"#.encode_utf16().flat_map(u16::to_le_bytes).collect();
    let with_type = |body: &str, kind: &str| Request::post("/chat", body).header("content-type", kind);
    let plain = r#"{"model":"gpt-4","user":"eve"}"#;
    vec![
        ("UTF-16", json("/chat", utf16)),
        ("a byte order mark", json("/chat", format!("\u{feff}{plain}"))),
        ("a NUL", json("/chat", format!("{plain}\0"))),
        (
            "two models, the last of which matches",
            json("/chat", r#"{"model":"x","user":"eve","model":"gpt-4"}"#),
        ),
        (
            "two models, the first of which matches",
            json("/chat", r#"{"model":"gpt-4","user":"eve","model":"x"}"#),
        ),
        (
            "a second model with an escape",
            json("/chat", r#"{"model":"x","user":"eve","mod\u0065l":"gpt-4"}"#),
        ),
        ("a model in another case", json("/chat", r#"{"Model":"gpt-4","user":"eve"}"#)),
        ("a model that ends at a NUL", json("/chat", r#"{"model\u0000":"gpt-4","user":"eve"}"#)),
        ("a charset", with_type(plain, "application/json; charset=utf-16")),
        ("a list of content types", with_type(plain, "application/x-www-form-urlencoded, x/y+json")),
        ("trailing garbage", json("/chat", format!("{plain} x"))),
        ("two documents", json("/chat", format!("{plain}{plain}"))),
        ("a comment", json("/chat", format!("/**/{plain}"))),
        ("a document that ends before its fields", json("/chat", &plain[..plain.len() - 3])),
        ("a document that ends behind its fields", json("/chat", &plain[..plain.len() - 1])),
        (
            "too many levels",
            json("/chat", format!("{{\"x\":{}{},{}", "[".repeat(64), "]".repeat(64), &plain[1..])),
        ),
        ("another content type", with_type(plain, "text/plain")),
        ("no content type", Request::post("/chat", plain)),
        ("a form", with_type("model=gpt-4&user=eve", "application/x-www-form-urlencoded")),
        (
            "fields beyond the maximum",
            json("/chat", format!("{{\"x\":\"{}\",{}", "x".repeat(5000), &plain[1..])),
        ),
        ("an unknown coding", json("/chat", plain).header("content-encoding", "deflate")),
        ("a coding that it does not have", json("/chat", plain).header("content-encoding", "gzip")),
    ]
}

#[test]
fn no_spelling_evades_a_rule() {
    let origin = Origin::hello();
    let weir = Weir::start(&config(origin.address(), RULES));
    for (what, request) in evasions() {
        assert_eq!(statuses(&weir, [&request]), [400], "{what}");
    }
    assert!(origin.requests().is_empty(), "the upstream received {:#?}", origin.requests());
    // The same fields in another spelling are the same key.
    let spellings = [
        r#"{"model":"gpt-4","user":"mallory"}"#,
        r#"{ "\u006dodel" : "\u0067pt-4", "user" : "mallor\u0079" }"#,
        r#"{"user":"mallory","x":{"model":"y"},"model":"gpt-4"}"#,
    ];
    assert_eq!(statuses(&weir, &spellings.map(|body| json("/chat", body))), [200, 200, 429]);
    let numbers =
        ["1", "1.0", "10e-1"].map(|user| json("/chat", format!("{{\"model\":\"gpt-4\",\"user\":{user}}}")));
    assert_eq!(statuses(&weir, &numbers), [200, 200, 429], "numbers have one spelling");
}

/// Forms that state the name of a user in ways in which some programs read another one, or none.
fn form_evasions() -> Vec<(&'static str, Request)> {
    let spellings = [
        ("a last pair that states the field again", "username=decoy&password=x&username=eve"),
        ("two pairs", "username=eve&username=decoy"),
        ("a leading space", "+username=eve"),
        ("a leading space in hexadecimal", "%20username=eve&x=y"),
        ("a trailing space", "username+=eve"),
        ("another case", "x=y&Username=eve"),
        ("an array", "username[]=eve"),
        ("an array beside the field", "username=decoy&username%5B0%5D=eve"),
        ("brackets around", "[username]=eve"),
        ("a name that ends at a NUL", "username%00=eve"),
        ("a name that goes on behind a NUL", "username%00x=eve"),
        ("a semicolon before", "x=1;username=eve"),
        ("a semicolon behind", "username=eve;x=1"),
        ("a letter of ASP.NET", "%u0075sername=eve"),
        ("a value in letters of ASP.NET", "username=%u0065ve"),
    ];
    let plain = "username=eve&password=x";
    let with_type = |kind: &str| Request::post("/login", plain).header("content-type", kind);
    let (of_forms, of_json) = ("application/x-www-form-urlencoded", "application/json");
    let mut evasions: Vec<_> = spellings.map(|(what, body)| (what, form("/login", body))).into();
    evasions.extend([
        ("UTF-16", with_type("application/x-www-form-urlencoded; charset=utf-16")),
        ("EBCDIC", with_type("application/x-www-form-urlencoded; charset=\"ibm037\"")),
        ("Latin-1", with_type("application/x-www-form-urlencoded;charset=ISO-8859-1")),
        ("another type behind", with_type(of_forms).header("content-type", of_json)),
        ("another type before", with_type(of_json).header("content-type", of_forms)),
        ("a list of types", with_type("application/x-www-form-urlencoded, application/json")),
        ("a longer form than is held", form("/login", &format!("{plain}&x={}", "x".repeat(5000)))),
    ]);
    evasions
}

#[test]
fn no_spelling_of_a_form_evades_a_rule() {
    let origin = Origin::hello();
    let weir = Weir::start(&config(origin.address(), RULES));
    for (what, request) in form_evasions() {
        assert_eq!(statuses(&weir, [&request]), [400], "{what}");
    }
    assert!(origin.requests().is_empty(), "the upstream received {:#?}", origin.requests());
    // The same name in another spelling is the same key.
    let spellings = ["username=eve&x=y;z", "password=x&%75sername=%65ve", "username=eve&user=x&username_2=y"];
    assert_eq!(statuses(&weir, &spellings.map(|body| form("/login", body))), [200, 200, 429]);
}
