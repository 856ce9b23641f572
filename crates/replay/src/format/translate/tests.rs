use proptest::prelude::*;

use super::*;
use crate::collected::CollectedNames;
use crate::format::fields::FieldNames;
use crate::format::{LineParser, LogFormat};
use crate::record::ParsedBlock;
use crate::stream::parse_block;

fn translate(text: &str) -> String {
    let (mut translator, mut out) = (Translator::default(), Vec::new());
    for line in text.lines() {
        translator.translate(line.as_bytes(), &mut out);
        out.push(b'\n');
    }
    String::from_utf8(out).unwrap()
}

/// Returns time, address, method, target and status of the requests of a log.
fn requests(format: LogFormat, text: &str) -> Vec<(u64, String, String, String, u16)> {
    let names = FieldNames::new(&CollectedNames::of_headers(["x-api-key"]), &[]).unwrap();
    let mut block = ParsedBlock { data: translate(text).into_bytes(), ..ParsedBlock::default() };
    parse_block(&mut block, &mut LineParser::new(format, &names), &mut 0, 0);
    let span = |span: crate::record::TextSpan| {
        String::from_utf8(span.text(&block.data).unwrap_or_default().to_vec()).unwrap()
    };
    let request = |request: &crate::record::LoggedRequest| {
        let address = format!("{:?}", request.address);
        (request.start.as_secs(), address, span(request.method), span(request.target), request.status)
    };
    block.requests.iter().map(request).collect()
}

#[test]
fn parts_of_a_line_are_joined_by_stream() {
    let text = "2026-11-23T20:07:02.1Z stdout P {\"time\":1,\n2026-11-23T20:07:02.1Z stderr F other\n\
                2026-11-23T20:07:02.1Z stdout P \"path\":\n2026-11-23T20:07:02.2Z stdout F \"/a\"}\n";
    assert_eq!(translate(text), "\nother\n\n{\"time\":1,\"path\":\"/a\"}\n");
    let endless = "2026-11-23T20:07:02.1Z stdout P xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx\n".repeat(4000);
    let text =
        translate(&(endless + "2026-11-23T20:07:02.1Z stdout F end\n2026-11-23T20:07:02.1Z stdout F next\n"));
    assert_eq!(text.trim(), "next", "a line that is too long is left out");
}

#[test]
fn messages_that_are_no_requests_stay_as_they_are() {
    for line in [
        r#"{"time":1,"path":"/a","message":"handled request"}"#,
        r#"{"level":"info","msg":"started","ts":1.5}"#,
        "plain text: nothing",
        "",
    ] {
        assert_eq!(translate(line).trim_end(), line);
    }
}

#[test]
fn time_of_the_wrapper_counts_if_the_payload_has_none() {
    let text =
        r#"{"timestamp":"2026-11-23T20:07:02Z","jsonPayload":{"method":"GET","path":"/a","status":200}}"#;
    let [(time, _, method, path, status)] = &requests(LogFormat::Json, text)[..] else { panic!() };
    assert_eq!((*time, &**method, &**path, *status), (1_795_464_422, "GET", "/a", 200));
}

proptest! {
    #[test]
    fn translation_of_any_bytes_is_one_line(line in proptest::collection::vec(any::<u8>(), 0..300)) {
        let (mut translator, mut out) = (Translator::default(), Vec::new());
        let line: Vec<u8> = line.into_iter().filter(|byte| *byte != b'\n').collect();
        translator.translate(b"#Fields: date time c-ip cs-method cs-uri-stem", &mut out);
        translator.translate(&line, &mut out);
        prop_assert!(!out.contains(&b'\n'));
    }
}
