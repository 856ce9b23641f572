//! Tests of where tokens are found, and of text that only some parsers read as a token.

use http::HeaderName;

use super::*;

/// Returns the result of a request with these header lines.
fn read(
    source: TokenSource,
    trust: TokenTrust,
    lines: &[(&'static str, &str)],
) -> Result<Option<String>, Ambiguity> {
    let verifier = verifier_with(trust, |settings| settings.source = source);
    let mut headers = HeaderMap::new();
    for (name, value) in lines {
        headers.append(*name, HeaderValue::from_bytes(value.as_bytes()).unwrap());
    }
    let read = || verifier.read(&headers, NOW).map(|claims| Some(claims?.get(0)?.to_owned()));
    let first = read();
    assert_eq!(read(), first, "from the cache");
    first
}

fn in_authorization(lines: &[&str]) -> Result<Option<String>, Ambiguity> {
    let lines: Vec<_> = lines.iter().map(|line| ("authorization", *line)).collect();
    read(TokenSource::Header(AUTHORIZATION), signed([VerificationKey::from_secret(SECRET)]), &lines)
}

fn in_cookie(line: &str) -> Result<Option<String>, Ambiguity> {
    read(
        TokenSource::Cookie("session".into()),
        signed([VerificationKey::from_secret(SECRET)]),
        &[("cookie", line)],
    )
}

fn claims_of_ada() -> Result<Option<String>, Ambiguity> {
    Ok(Some("ada".to_owned()))
}

fn valid_token() -> String {
    hs256(&json!({ "sub": "ada" }))
}

#[test]
fn token_is_read_from_its_configured_source() {
    let token = valid_token();
    for scheme in ["Bearer ", "bearer  ", "Bearer\t", "Bearer \t ", "", "DPoP ", "Basic "] {
        assert_eq!(in_authorization(&[&format!("{scheme}{token}")]), claims_of_ada(), "{scheme:?}");
    }
    let own = |lines: &[(&'static str, &str)]| {
        read(
            TokenSource::Header(HeaderName::from_static("x-jwt")),
            signed([VerificationKey::from_secret(SECRET)]),
            lines,
        )
    };
    assert_eq!(own(&[("x-jwt", &token)]), claims_of_ada());
    assert_eq!(own(&[("authorization", &token)]), Ok(None));
    let encoded = token.replace('.', "%2E").replace('a', "%61");
    for value in [token.clone(), format!("\"{token}\""), encoded, format!("{token}; session={token}")] {
        assert_eq!(in_cookie(&format!("a=b; session={value}; c=d")), claims_of_ada(), "{value}");
    }
    assert_eq!(in_cookie(&format!("other={token}")), Ok(None));
}

#[test]
fn several_different_tokens_are_ambiguous() {
    let (token, other) = (valid_token(), hs256(&json!({ "sub": "eve" })));
    let bearer = |token: &str| format!("Bearer {token}");
    for second in [bearer(&other), bearer("x"), "Basic eA==".to_owned(), String::new(), format!("x{token}")] {
        assert_eq!(in_authorization(&[&bearer(&token), &second]), Err(Ambiguity::Repeated), "{second}");
        assert_eq!(in_authorization(&[&second, &bearer(&token)]), Err(Ambiguity::Repeated), "{second}");
    }
    assert_eq!(in_authorization(&[&bearer(&token), &bearer(&token)]), claims_of_ada());
    for second in [&*other, "", "x"] {
        let line = format!("session={token}; session={second}");
        assert_eq!(in_cookie(&line), Err(Ambiguity::Repeated), "{line}");
    }
}

#[test]
fn token_found_only_by_lenient_parsers_is_ambiguous() {
    let token = valid_token();
    for line in [
        format!("Bearer {token} x"),
        format!("{token} x"),
        format!("Bearer x {token}"),
        format!("Basic eA== Bearer {token}"),
        format!("Basic eA==,Bearer {token}"),
        format!("Bearer {token}, Bearer {token}"),
        format!("Bearer {token},"),
        format!("Bearer \"{token}\""),
        format!("Bearer\u{a0}{token}"),
        format!("Bearer {token}="),
        format!("Bearer {token}=="),
        format!("Bearer {token}."),
        format!("Bearer {token}.x"),
        format!("Bearer token={token}"),
        format!("Bearer {token}{}", "=".repeat(MAX_TOKEN_LENGTH)),
        // Padding bits of the last character: only some decoders check them.
        format!("Bearer {}", loosely_encoded(&token)),
    ] {
        assert_eq!(in_authorization(&[&line]), Err(Ambiguity::Unreadable), "{line}");
    }
    for cookie in [format!("session={token}="), format!("session={token}.x"), format!("session=%22{token}")] {
        assert_eq!(in_cookie(&cookie), Err(Ambiguity::Unreadable), "{cookie}");
    }
}

/// Returns a token with the same bytes in another encoding: 32 signature bytes leave two bits of the last character.
fn loosely_encoded(token: &str) -> String {
    const ALPHABET: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    let (start, last) = token.split_at(token.len() - 1);
    let value = ALPHABET.iter().position(|character| *character == last.as_bytes()[0]).unwrap();
    assert_eq!(value % 4, 0);
    format!("{start}{}", char::from(ALPHABET[value + 1]))
}

#[test]
fn other_credentials_are_no_token() {
    let (long, forged) = ("x".repeat(MAX_TOKEN_LENGTH + 1), es256(None, EC));
    for line in [
        "Basic dXNlcjpwYXNz",
        "Bearer",
        "Bearer opaque",
        "Bearer 17|laravel~sanctum",
        "Bot MTk4NjIyNDgzNDcx.Cl2FMQ.ZnCjm1XVW7vRze4b7Cq4se7kKWs",
        "Digest username=\"a\", realm=\"b\", uri=\"/a.b.c\", response=\"6629fae49393a05397450978507c4ef1\"",
        "AWS4-HMAC-SHA256 Credential=AKIA/20130524/us/s3/aws4_request, SignedHeaders=host;range, Signature=f0",
        &format!("Bearer {long}"),
        &format!("Bearer {forged}"),
    ] {
        assert_eq!(in_authorization(&[line]), Ok(None), "{line}");
    }
    assert_eq!(in_authorization(&[]), Ok(None));
    for cookie in ["session=", "session=deleted", "session=s%3Aabc.def", "session"] {
        assert_eq!(in_cookie(cookie), Ok(None), "{cookie}");
    }
}

#[test]
fn pre_verified_token_is_parsed_strictly() {
    let token = es256(None, OTHER);
    let trusted = |line: &str| {
        read(TokenSource::Header(AUTHORIZATION), TokenTrust::PreVerified, &[("authorization", line)])
    };
    assert_eq!(trusted(&format!("Bearer {token}")), claims_of_ada());
    // The signature is not checked, so text after it changes nothing.
    assert_eq!(trusted(&format!("Bearer {token} x")), claims_of_ada());
    assert_eq!(trusted(&format!("Bearer {token}.x")), Err(Ambiguity::Unreadable));
    assert_eq!(trusted("Basic dXNlcjpwYXNz"), Ok(None));
}
