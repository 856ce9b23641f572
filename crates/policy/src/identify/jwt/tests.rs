mod token_lookup;

use http::HeaderValue;
use http::header::AUTHORIZATION;
use jsonwebtoken::jwk::Jwk;
use jsonwebtoken::{Algorithm, EncodingKey};
use serde_json::json;

use super::keys::{KeyError, VerificationKey};
use super::*;

const NOW: Timestamp = Timestamp::from_secs(1_800_000_000);
const SECRET: &[u8] = b"a secret that is known to everybody";

const RSA: &str = include_str!("../../../../../tests/data/jwt/rsa.pem");
const RSA_PUBLIC: &str = include_str!("../../../../../tests/data/jwt/rsa.pub.pem");
const EC: &str = include_str!("../../../../../tests/data/jwt/ec.pem");
const EC_PUBLIC: &str = include_str!("../../../../../tests/data/jwt/ec.pub.pem");
const OTHER: &str = include_str!("../../../../../tests/data/jwt/other.pem");
const P384: &str = include_str!("../../../../../tests/data/jwt/p384.pem");
const P384_PUBLIC: &str = include_str!("../../../../../tests/data/jwt/p384.pub.pem");
const ED: &str = include_str!("../../../../../tests/data/jwt/ed.pem");
const ED_PUBLIC: &str = include_str!("../../../../../tests/data/jwt/ed.pub.pem");

fn encode(json: &Value) -> String {
    use base64::Engine as _;
    base64::engine::general_purpose::URL_SAFE_NO_PAD.encode(json.to_string())
}

/// Returns a token with exactly this header and payload.
fn sign(header: &Value, payload: &Value, key: &EncodingKey, algorithm: Algorithm) -> String {
    let message = format!("{}.{}", encode(header), encode(payload));
    let signature = jsonwebtoken::crypto::sign(message.as_bytes(), key, algorithm).unwrap();
    format!("{message}.{signature}")
}

fn hs256(payload: &Value) -> String {
    sign(&json!({ "alg": "HS256" }), payload, &EncodingKey::from_secret(SECRET), Algorithm::HS256)
}

fn es256(kid: Option<&str>, pem: &str) -> String {
    let key = EncodingKey::from_ec_pem(pem.as_bytes()).unwrap();
    sign(&json!({ "alg": "ES256", "kid": kid }), &json!({ "sub": "ada" }), &key, Algorithm::ES256)
}

/// Returns the JWK of this private key on P-256, with additional members.
fn jwk(pem: &str, members: &Value) -> String {
    let key = EncodingKey::from_ec_pem(pem.as_bytes()).unwrap();
    let jwk = Jwk::from_encoding_key(&key, Algorithm::ES256).unwrap();
    let mut jwk = serde_json::to_value(jwk).unwrap();
    jwk.as_object_mut().unwrap().extend(members.as_object().unwrap().clone());
    jwk.to_string()
}

fn verifier(trust: TokenTrust) -> Verifier {
    verifier_with(trust, |_| {})
}

fn verifier_with(trust: TokenTrust, change: impl FnOnce(&mut JwtSettings)) -> Verifier {
    let mut settings = JwtSettings {
        source: TokenSource::Header(AUTHORIZATION),
        trust,
        issuers: Box::default(),
        audiences: Box::default(),
        leeway: Duration::from_secs(60),
    };
    change(&mut settings);
    Verifier::new(settings, ["sub", "org.id"].map(|name| ClaimName::new(name).unwrap()), [3, 5])
}

fn signed(keys: impl IntoIterator<Item = VerificationKey>) -> TokenTrust {
    TokenTrust::Signed(keys.into_iter().collect())
}

fn secret_verifier() -> Verifier {
    verifier(signed([VerificationKey::from_secret(SECRET)]))
}

fn pem(text: &str) -> VerificationKey {
    VerificationKey::from_pem(text).unwrap()
}

impl Verifier {
    /// Returns the claim `sub` of the token in an `authorization` header.
    fn sub_of(&self, header: &str, now: Timestamp) -> Option<String> {
        let mut headers = HeaderMap::new();
        headers.insert(AUTHORIZATION, HeaderValue::from_str(header).unwrap());
        self.sub_in(&headers, now)
    }

    fn sub_in(&self, headers: &HeaderMap, now: Timestamp) -> Option<String> {
        self.read(headers, now).ok()??.get(0).map(str::to_owned)
    }

    fn sub(&self, token: &str) -> Option<String> {
        self.sub_of(&format!("Bearer {token}"), NOW)
    }
}

const ADA: Option<&str> = Some("ada");

#[track_caller]
fn assert_accepted(verifier: &Verifier, token: &str) {
    assert_eq!(verifier.sub(token).as_deref(), ADA);
    // From the cache.
    assert_eq!(verifier.sub(token).as_deref(), ADA);
}

#[track_caller]
fn assert_rejected(verifier: &Verifier, token: &str) {
    assert_eq!(verifier.sub(token), None);
    assert_eq!(verifier.sub(token), None);
}

/// RFC 7515, appendices A.1 and A.3.
#[test]
fn rfc7515_example_tokens_are_verified() {
    const PAYLOAD: &str =
        "eyJpc3MiOiJqb2UiLA0KICJleHAiOjEzMDA4MTkzODAsDQogImh0dHA6Ly9leGFtcGxlLmNvbS9pc19yb290Ijp0cnVlfQ";
    let claims = ["iss", "http://example.com/is_root"].map(|name| ClaimName::new(name).unwrap());
    let examples = [
        (
            "eyJ0eXAiOiJKV1QiLA0KICJhbGciOiJIUzI1NiJ9",
            "dBjftJeZ4CVP-mB92K27uhbUJU1p1r_wW1gFWFOEjXk",
            r#"{"kty":"oct","k":"AyM1SysPpbyDfgZld3umj1qzKObwVMkoqQ-EstJQLr_T-1qS0gZH75aKtMN3Yj0iPS4hcgUuTwjAzZr1Z9CAow"}"#,
        ),
        (
            "eyJhbGciOiJFUzI1NiJ9",
            "DtEhU3ljbEg8L38VWAfUAqOyKAM6-Xx-F4GawxaepmXFCgfTjDxw5djxLa8ISlSApmWQxfKTUJqPP3-Kg6NU1Q",
            r#"{"kty":"EC","crv":"P-256","x":"f83OJ3D2xF1Bg8vub9tLe1gHMzV76e8Tus9uPHvRVEU","y":"x_FEzRu9m36HLN_tue659LNpXW6pCyStikYjKIWI5a0"}"#,
        ),
    ];
    for (header, signature, jwk) in examples {
        let trust = signed([VerificationKey::from_jwk(jwk).unwrap()]);
        let verifier = Verifier { claims: claims.clone().into(), ..verifier(trust) };
        let mut headers = HeaderMap::new();
        let token = format!("Bearer {header}.{PAYLOAD}.{signature}");
        headers.insert(AUTHORIZATION, token.parse().unwrap());
        let before = Timestamp::from_secs(1_300_819_379);
        let claims = verifier.read(&headers, before).unwrap().expect("the example is valid");
        assert_eq!((claims.get(0), claims.get(1)), (Some("joe"), Some("true")));
        // It expired in 2011.
        assert!(verifier.read(&headers, NOW).unwrap().is_none());
    }
}

#[test]
fn tokens_of_every_algorithm_are_verified() {
    let ec = |pem: &str| EncodingKey::from_ec_pem(pem.as_bytes()).unwrap();
    let rsa = || EncodingKey::from_rsa_pem(RSA.as_bytes()).unwrap();
    let secret = || EncodingKey::from_secret(SECRET);
    let cases = [
        (Algorithm::HS256, secret(), VerificationKey::from_secret(SECRET)),
        (Algorithm::HS384, secret(), VerificationKey::from_secret(SECRET)),
        (Algorithm::HS512, secret(), VerificationKey::from_secret(SECRET)),
        (Algorithm::RS256, rsa(), pem(RSA_PUBLIC)),
        (Algorithm::RS384, rsa(), pem(RSA_PUBLIC)),
        (Algorithm::RS512, rsa(), pem(RSA_PUBLIC)),
        (Algorithm::PS256, rsa(), pem(RSA_PUBLIC)),
        (Algorithm::PS384, rsa(), pem(RSA_PUBLIC)),
        (Algorithm::PS512, rsa(), pem(RSA_PUBLIC)),
        (Algorithm::ES256, ec(EC), pem(EC_PUBLIC)),
        (Algorithm::ES384, ec(P384), pem(P384_PUBLIC)),
        (Algorithm::EdDSA, EncodingKey::from_ed_pem(ED.as_bytes()).unwrap(), pem(ED_PUBLIC)),
    ];
    for (algorithm, private, public) in cases {
        let jwk = serde_json::to_string(&Jwk::from_encoding_key(&private, algorithm).unwrap()).unwrap();
        let name = serde_json::to_value(algorithm).unwrap();
        let token = sign(&json!({ "alg": name }), &json!({ "sub": "ada" }), &private, algorithm);
        for key in [public, VerificationKey::from_jwk(&jwk).unwrap()] {
            let verifier = verifier(signed([key]));
            assert_accepted(&verifier, &token);
            let (message, _) = token.rsplit_once('.').unwrap();
            assert_rejected(&verifier, &format!("{message}.AAAA"));
            assert_rejected(&verifier, &format!("{message}."));
        }
    }
}

#[test]
fn token_with_a_wrong_signature_is_rejected() {
    assert_accepted(&verifier(signed([pem(EC_PUBLIC)])), &es256(None, EC));
    assert_rejected(&verifier(signed([pem(EC_PUBLIC)])), &es256(None, OTHER));
    // Another payload with the signature of the first token.
    let (ada, eve) = (hs256(&json!({ "sub": "ada" })), hs256(&json!({ "sub": "eve" })));
    let parts = |token: &str| token.split('.').map(str::to_owned).collect::<Vec<_>>();
    let (ada, eve) = (parts(&ada), parts(&eve));
    assert_rejected(&secret_verifier(), &format!("{}.{}.{}", ada[0], ada[1], eve[2]));
    assert_accepted(&secret_verifier(), &format!("{}.{}.{}", ada[0], ada[1], ada[2]));
}

#[test]
fn token_with_alg_none_is_rejected() {
    let payload = encode(&json!({ "sub": "ada" }));
    for alg in ["none", "None", "NONE", "nOnE", ""] {
        let header = encode(&json!({ "alg": alg }));
        for verifier in [secret_verifier(), verifier(signed([pem(EC_PUBLIC)])), verifier(signed([]))] {
            assert_rejected(&verifier, &format!("{header}.{payload}."));
            assert_rejected(&verifier, &format!("{header}.{payload}"));
        }
    }
}

#[test]
fn public_key_is_not_accepted_as_hmac_secret() {
    for public in [RSA_PUBLIC, EC_PUBLIC, ED_PUBLIC] {
        let verifier = verifier(signed([pem(public)]));
        let of_material = pem(public).material().try_get_as_bytes().map(<[u8]>::to_vec).ok();
        let trimmed = public.trim_end().as_bytes().to_vec();
        for secret in [Some(public.as_bytes().to_vec()), Some(trimmed), of_material].into_iter().flatten() {
            for (name, algorithm) in [("HS256", Algorithm::HS256), ("HS512", Algorithm::HS512)] {
                let key = EncodingKey::from_secret(&secret);
                let token = sign(&json!({ "alg": name }), &json!({ "sub": "ada" }), &key, algorithm);
                assert_rejected(&verifier, &token);
            }
        }
    }
}

#[test]
fn key_verifies_only_its_own_algorithms() {
    let only_512 =
        VerificationKey::from_secret(SECRET).only_for(&[Algorithm::HS512, Algorithm::RS256]).unwrap();
    assert_eq!(only_512.algorithms(), [Algorithm::HS512]);
    assert_rejected(&verifier(signed([only_512])), &hs256(&json!({ "sub": "ada" })));
    assert!(VerificationKey::from_secret(SECRET).only_for(&[Algorithm::ES256]).is_none());
}

#[test]
fn token_is_valid_only_between_nbf_and_exp() {
    let second = |seconds: u64| Timestamp::from_secs(NOW.as_secs() + seconds);
    let token = hs256(&json!({ "sub": "ada", "nbf": NOW.as_secs() + 100, "exp": NOW.as_secs() + 200 }));
    let header = format!("Bearer {token}");
    // The same verifier, to test the cache as well.
    let verifier = secret_verifier();
    for (moment, holds) in [(39, false), (40, true), (100, true), (259, true), (260, false), (1000, false)] {
        for _ in 0..2 {
            assert_eq!(verifier.sub_of(&header, second(moment)).is_some(), holds, "{moment}");
            assert_eq!(secret_verifier().sub_of(&header, second(moment)).is_some(), holds, "{moment} afresh");
        }
    }
    let strict = verifier_with(signed([VerificationKey::from_secret(SECRET)]), |settings| {
        settings.leeway = Duration::ZERO
    });
    for (moment, holds) in [(99, false), (100, true), (199, true), (200, false)] {
        assert_eq!(strict.sub_of(&header, second(moment)).is_some(), holds, "{moment} without leeway");
    }
}

#[test]
fn token_with_a_malformed_time_is_rejected() {
    for (name, value) in [
        ("exp", json!("9999999999")),
        ("exp", json!(null)),
        ("exp", json!([9_999_999_999_u64])),
        ("exp", json!(-1)),
        ("exp", json!(0)),
        ("exp", json!(1.5)),
        ("nbf", json!("0")),
        ("nbf", json!(1e300)),
        ("nbf", json!(u64::MAX)),
    ] {
        assert_rejected(&secret_verifier(), &hs256(&json!({ "sub": "ada", (name): value })));
    }
    for (name, value) in [("exp", json!(1e300)), ("exp", json!(u64::MAX)), ("nbf", json!(-1.5))] {
        assert_accepted(&secret_verifier(), &hs256(&json!({ "sub": "ada", (name): value })));
    }
}

#[test]
fn token_of_another_issuer_or_audience_is_rejected() {
    let check = |issuers: &[&str], audiences: &[&str], payload: Value| {
        let boxed = |texts: &[&str]| texts.iter().map(|text| Box::from(*text)).collect();
        let verifier = verifier_with(signed([VerificationKey::from_secret(SECRET)]), |settings| {
            (settings.issuers, settings.audiences) = (boxed(issuers), boxed(audiences));
        });
        verifier.sub(&hs256(&payload)).is_some()
    };
    let ours = |extra: Value| {
        let mut payload = json!({ "sub": "ada" });
        payload.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        payload
    };
    assert!(check(&[], &[], ours(json!({ "iss": "anybody", "aud": ["anything"] }))));
    assert!(check(&["a", "b"], &[], ours(json!({ "iss": "b" }))));
    assert!(check(&[], &["x", "y"], ours(json!({ "aud": "y" }))));
    assert!(check(&[], &["x"], ours(json!({ "aud": ["w", "x"] }))));
    for wrong in [json!({}), json!({ "iss": "c" }), json!({ "iss": ["a"] }), json!({ "iss": "" })] {
        assert!(!check(&["a"], &[], ours(wrong)));
    }
    for wrong in [json!({}), json!({ "aud": "w" }), json!({ "aud": [] }), json!({ "aud": [["x"], 1] })] {
        assert!(!check(&[], &["x"], ours(wrong)));
    }
}

#[test]
fn malformed_token_is_rejected() {
    let good = hs256(&json!({ "sub": "ada" }));
    let verifier = secret_verifier();
    for bad in [
        "",
        ".",
        "..",
        "...",
        "a.b.c",
        "Bearer",
        &good[..good.len() - 1],
        &good[1..],
        &format!("{good}."),
        &format!(".{good}"),
        &format!("{good} {good}"),
        &good.replace('.', ","),
        &format!("{good}="),
    ] {
        assert_rejected(&verifier, bad);
    }
    let odd = |header: Value, payload: Value| {
        sign(&header, &payload, &EncodingKey::from_secret(SECRET), Algorithm::HS256)
    };
    let alg = json!({ "alg": "HS256" });
    for payload in [json!([]), json!("ada"), json!(null), json!(7)] {
        assert_rejected(&verifier, &odd(alg.clone(), payload));
    }
    for header in [json!({}), json!({ "alg": 7 }), json!([]), json!({ "alg": ["HS256"] })] {
        assert_rejected(&verifier, &odd(header, json!({ "sub": "ada" })));
    }
    let critical = json!({ "alg": "HS256", "crit": ["b64"], "b64": false });
    assert_rejected(&verifier, &odd(critical, json!({ "sub": "ada" })));
    assert_accepted(&verifier, &good);
}

#[test]
fn token_above_max_length_is_rejected() {
    let of = |length: usize| hs256(&json!({ "sub": "ada", "filler": "x".repeat(length) }));
    let fits = of(5900);
    assert!(fits.len() <= MAX_TOKEN_LENGTH && of(6200).len() > MAX_TOKEN_LENGTH);
    assert_accepted(&secret_verifier(), &fits);
    assert_rejected(&secret_verifier(), &of(6200));
}

#[test]
fn kid_selects_the_verification_key() {
    let keys = |pairs: &[(&str, &str)]| {
        let key =
            |(id, pem): &(&str, &str)| VerificationKey::from_jwk(&jwk(pem, &json!({ "kid": id }))).unwrap();
        verifier(signed(pairs.iter().map(key).collect::<Vec<_>>()))
    };
    let set = keys(&[("old", OTHER), ("new", EC)]);
    assert_accepted(&set, &es256(Some("new"), EC));
    assert_accepted(&set, &es256(Some("old"), OTHER));
    assert_rejected(&set, &es256(Some("old"), EC));
    assert_rejected(&set, &es256(Some("unknown"), EC));
    // Without a name every key is tried,
    assert_accepted(&set, &es256(None, EC));
    // up to the maximum.
    let many = keys(&[("1", OTHER), ("2", OTHER), ("3", OTHER), ("4", OTHER), ("5", EC)]);
    assert_rejected(&many, &es256(None, EC));
    assert_accepted(&many, &es256(Some("5"), EC));
    // Two keys may have the same name.
    assert_accepted(&keys(&[("a", OTHER), ("a", EC)]), &es256(Some("a"), EC));
    // A key without a name is tried for every token.
    let nameless = VerificationKey::from_jwk(&jwk(EC, &json!({}))).unwrap();
    assert_accepted(&verifier(signed([nameless])), &es256(Some("whatever"), EC));
}

#[test]
fn expired_key_invalidates_cached_tokens() {
    let expires = NOW.as_secs() + 10;
    let key = VerificationKey::from_jwk(&jwk(EC, &json!({ "exp": expires }))).unwrap();
    let verifier = verifier(signed([key]));
    let header = format!("Bearer {}", es256(None, EC));
    assert!(verifier.sub_of(&header, NOW).is_some());
    assert!(verifier.sub_of(&header, Timestamp::from_secs(expires - 1)).is_some());
    assert!(verifier.sub_of(&header, Timestamp::from_secs(expires)).is_none());
}

#[test]
fn pre_verified_token_is_accepted_without_its_signature() {
    let trusted = verifier(TokenTrust::PreVerified);
    assert_accepted(&trusted, &es256(None, OTHER));
    let payload = encode(&json!({ "sub": "ada" }));
    assert_accepted(&trusted, &payload);
    assert_accepted(&trusted, &format!("{payload}=="));
    let expired = json!({ "sub": "ada", "exp": NOW.as_secs() - 100 });
    assert_rejected(&trusted, &encode(&expired));
    for bad in ["", "a.b", "a.b.c.d", &payload[1..]] {
        assert_rejected(&trusted, bad);
    }
}

#[test]
fn jwk_errors_distinguish_unsupported_from_damaged_keys() {
    let with = |members: Value| VerificationKey::from_jwk(&jwk(EC, &members)).map(drop);
    assert_eq!(with(json!({ "use": "sig", "key_ops": ["verify"], "alg": "ES256" })), Ok(()));
    for other in [
        json!({ "use": "enc" }),
        json!({ "key_ops": ["sign"] }),
        json!({ "alg": "ECDH-ES" }),
        json!({ "alg": "HS256" }),
        json!({ "crv": "secp256k1" }),
        json!({ "kty": "AKP" }),
    ] {
        assert!(matches!(with(other.clone()), Err(KeyError::Unsupported(_))), "{other}");
    }
    for damaged in [
        json!({ "x": "AA" }),
        json!({ "x": null }),
        json!({ "y": "!" }),
        json!({ "crv": "P-384" }),
        json!({ "crv": null }),
        json!({ "kty": null }),
        json!({ "kty": "RSA" }),
        json!({ "kid": 7 }),
        json!({ "exp": "tomorrow" }),
    ] {
        assert!(matches!(with(damaged.clone()), Err(KeyError::Damaged(_))), "{damaged}");
    }
    let short = json!({ "kty": "RSA", "n": "A".repeat(171), "e": "AQAB" }).to_string();
    let said = VerificationKey::from_jwk(&short).unwrap_err().to_string();
    assert_eq!(said, "an RSA key of 1024 bits, not 2048 to 8192");
}

#[test]
fn pem_without_a_public_key_is_rejected() {
    for (text, message) in [
        (EC, "a private key, expected a public key"),
        (RSA, "a private key, expected a public key"),
        ("-----BEGIN CERTIFICATE-----\n", "a certificate, expected a public key"),
        ("", "not a public key in PEM"),
        ("ssh-ed25519 AAAA", "not a public key in PEM"),
        (&format!("{EC_PUBLIC}{RSA_PUBLIC}"), "more than one key"),
        (
            "-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----\n",
            "not a public key of RSA, P-256, P-384 or Ed25519",
        ),
    ] {
        assert_eq!(VerificationKey::from_pem(text).unwrap_err().to_string(), message);
    }
}

#[test]
fn verifier_debug_output_hides_secrets() {
    let verifier = secret_verifier();
    verifier.sub(&hs256(&json!({ "sub": "ada" })));
    let shown = format!("{verifier:?}");
    let bytes = format!("{:?}", &SECRET[..5]);
    assert!(!shown.contains("ada") && !shown.contains("a secret") && !shown.contains(&bytes), "{shown}");
}
