use super::*;

fn set(text: &str) -> Result<Jwks, Vec<String>> {
    jwks(text.as_bytes().to_vec()).map_err(|flaws| flaws.iter().map(said).collect())
}

fn said(flaw: &Flaw) -> String {
    let place = flaw.place.map(|(line, column)| format!("{line}:{column}: ")).unwrap_or_default();
    format!("{place}{}", flaw.fault.message)
}

#[test]
fn each_key_has_its_place() {
    let text =
        "{\"issuer\": \"\u{e9}\", \"keys\": [ {\"kty\":\"oct\",\"k\":\"AAAA\"},\n  {\"kty\":\"AKP\"}]}";
    let set = jwks(text.as_bytes().to_vec()).unwrap();
    assert_eq!(set.keys[0].1, (1, 27));
    assert_eq!(
        set.skipped.iter().map(said).collect::<Vec<_>>(),
        ["2:3: not used: a key of the type \"AKP\""]
    );
}

#[test]
fn a_problem_never_repeats_what_a_key_is() {
    for text in [
        "{\"keys\": [{\"kty\":\"oct\",\"k\":\"hush hush\"}]}",
        "{\"keys\": [{\"kty\":\"oct\",\"k\":[\"hush\"]}]}",
        "{\"keys\": \"hush\"}",
        "\"hush\"",
        "{\"keys\": [{\"kty\":\"oct\",\"k\":\"hush\", hush}]}",
    ] {
        let problems = set(text).unwrap_err();
        assert!(!problems.is_empty() && !problems.concat().contains("hush"), "{problems:?}");
    }
}

#[test]
fn a_secret_is_what_the_file_holds() {
    let read = |content: &[u8]| secret(content.to_vec()).map(|secret| secret.0);
    assert_eq!(read(b"hush").unwrap(), b"hush");
    assert_eq!(read(b"hush\n").unwrap(), b"hush");
    assert_eq!(read(b"hush\r\n").unwrap(), b"hush");
    assert_eq!(read(b" hush\n\n").unwrap(), b" hush\n");
    assert_eq!(read(b"\xff\x00").unwrap(), b"\xff\x00");
    assert!(read(b"").is_err() && read(b"\n").is_err());
}
