use super::*;

fn parse_messages(text: &str) -> Result<Jwks, Vec<String>> {
    parse_jwks(text.as_bytes().to_vec()).map_err(|flaws| flaws.iter().map(message_with_position).collect())
}

fn message_with_position(flaw: &DataFileError) -> String {
    let place = flaw.position.map(|(line, column)| format!("{line}:{column}: ")).unwrap_or_default();
    format!("{place}{}", flaw.error.message)
}

#[test]
fn jwks_keys_have_positions() {
    let text =
        "{\"issuer\": \"\u{e9}\", \"keys\": [ {\"kty\":\"oct\",\"k\":\"AAAA\"},\n  {\"kty\":\"AKP\"}]}";
    let set = parse_jwks(text.as_bytes().to_vec()).unwrap();
    assert_eq!(set.keys[0].1, (1, 27));
    assert_eq!(
        set.skipped.iter().map(message_with_position).collect::<Vec<_>>(),
        ["2:3: not used: a key of the type \"AKP\""]
    );
}

#[test]
fn jwks_errors_never_quote_key_material() {
    for text in [
        "{\"keys\": [{\"kty\":\"oct\",\"k\":\"hush hush\"}]}",
        "{\"keys\": [{\"kty\":\"oct\",\"k\":[\"hush\"]}]}",
        "{\"keys\": \"hush\"}",
        "\"hush\"",
        "{\"keys\": [{\"kty\":\"oct\",\"k\":\"hush\", hush}]}",
    ] {
        let problems = parse_messages(text).unwrap_err();
        assert!(!problems.is_empty() && !problems.concat().contains("hush"), "{problems:?}");
    }
}

#[test]
fn secret_is_file_content_without_final_line_break() {
    let read = |content: &[u8]| parse_secret(content.to_vec()).map(|secret| secret.0);
    assert_eq!(read(b"hush").unwrap(), b"hush");
    assert_eq!(read(b"hush\n").unwrap(), b"hush");
    assert_eq!(read(b"hush\r\n").unwrap(), b"hush");
    assert_eq!(read(b" hush\n\n").unwrap(), b" hush\n");
    assert_eq!(read(b"\xff\x00").unwrap(), b"\xff\x00");
    assert!(read(b"").is_err() && read(b"\n").is_err());
}
