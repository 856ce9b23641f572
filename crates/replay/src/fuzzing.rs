//! What the parsers of access logs guarantee, for tests and fuzzers.

use super::collected::CollectedNames;
use super::format::fields::FieldNames;
use super::format::translate::Translator;
use super::format::{LineParser, LogFormat};
use super::record::{LoggedRequest, ParsedBlock};
use super::stream::parse_block;

/// Every line is counted once, texts lie within the block, and a line has the same meaning whatever precedes it.
fn check_format(format: LogFormat, data: &[u8]) {
    let names =
        FieldNames::new(&CollectedNames::of_headers(["x-api-key"]), &[]).unwrap_or_else(|_| unreachable!());
    let parse = |data: &[u8]| {
        let mut block = ParsedBlock { data: data.to_vec(), ..ParsedBlock::default() };
        parse_block(&mut block, &mut LineParser::new(format, &names), &mut 0, 0);
        block
    };
    let whole = parse(data);
    let counts = whole.counts;
    assert_eq!(counts.lines, whole.requests.len() as u64 + counts.unreadable + counts.no_request);
    assert!(whole.order.is_sorted() && whole.order.len() == whole.requests.len());
    let mut alone = Vec::new();
    for line in data.split(|byte| *byte == b'\n') {
        let block = parse(line);
        alone.extend(block.requests.iter().map(|request| texts(request, &block)));
    }
    let together: Vec<_> = whole.requests.iter().map(|request| texts(request, &whole)).collect();
    assert_eq!(together, alone, "a line depends on the lines before it");
}

type Texts = (u64, u16, Vec<Option<Vec<u8>>>);

/// Returns the contents of a request. A text outside of the block would have none.
fn texts(request: &LoggedRequest, block: &ParsedBlock) -> Texts {
    let LoggedRequest { method, target, host, forwarded_for, user_agent, referer, request_id, .. } = *request;
    let spans = [method, target, host, forwarded_for, user_agent, referer, request_id];
    let values = block.values_of(request).iter().map(|logged| logged.value);
    let text = |span: super::record::TextSpan| {
        let text = span.text(&block.data).map(<[u8]>::to_vec);
        assert_eq!(text.is_some(), span.range().is_some(), "a text outside of the block");
        text
    };
    (request.start.as_nanos(), request.status, spans.into_iter().chain(values).map(text).collect())
}

/// Lines in Envoy's format.
pub fn envoy_log(data: &[u8]) {
    check_format(LogFormat::Envoy, data);
}

/// Lines in the combined format.
pub fn combined_log(data: &[u8]) {
    check_format(LogFormat::Combined, data);
}

/// Lines in wrappers and in formats of other programs. Each becomes one line, and what it becomes is read as any other.
pub fn translated_log(data: &[u8]) {
    let (mut translator, mut translated) = (Translator::default(), Vec::new());
    for line in data.split(|byte| *byte == b'\n') {
        let start = translated.len();
        translator.translate(line, &mut translated);
        assert!(!translated[start..].contains(&b'\n'), "a line becomes several");
        translated.push(b'\n');
    }
    LogFormat::ALL.into_iter().for_each(|format| check_format(format, &translated));
}

/// Lines of JSON objects. What is accepted as such and is valid JSON has the same path for a JSON parser.
pub fn json_log(data: &[u8]) {
    check_format(LogFormat::Json, data);
    let names = FieldNames::new(&CollectedNames::default(), &[]).unwrap_or_else(|_| unreachable!());
    for line in data.split(|byte| *byte == b'\n') {
        let Ok(serde_json::Value::Object(object)) = serde_json::from_slice(line) else { continue };
        let mut block = ParsedBlock { data: line.to_vec(), ..ParsedBlock::default() };
        parse_block(&mut block, &mut LineParser::new(LogFormat::Json, &names), &mut 0, 0);
        let path = object.get("path").and_then(serde_json::Value::as_str);
        // A repeated or an empty name, and other names of the same field, may come first.
        let others = [
            "request_uri",
            "uri",
            "url",
            "RequestPath",
            "request",
            "x-envoy-origin-path",
            ":path",
            "resourcePath",
            "httpRequest",
            "properties",
        ];
        let is_only = others.iter().all(|other| !object.contains_key(*other))
            && line.windows(6).filter(|text| *text == b"\"path\"").count() == 1
            && !line.contains(&b'\\');
        if let ([request], Some(path)) = (&*block.requests, path)
            && is_only
        {
            assert_eq!(request.target.text(&block.data), Some(path.as_bytes()), "{line:?}");
        }
    }
}
