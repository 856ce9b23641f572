//! Limits by the claims of a signed token.

use std::fs;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use jsonwebtoken::jwk::Jwk;
use jsonwebtoken::{Algorithm, EncodingKey, Header, encode};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::support::{Request, Weir, config, fetch, wait};

const SECRET: &str = "a secret that is known to everybody";

fn read_test_data(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/jwt").join(name);
    fs::read_to_string(path).unwrap()
}

fn ec_key(name: &str) -> EncodingKey {
    EncodingKey::from_ec_pem(read_test_data(name).as_bytes()).unwrap()
}

#[expect(clippy::disallowed_methods, reason = "tokens hold by the clock on the wall")]
fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs()
}

/// Returns a token with `claims`, which is valid for an hour unless they contain another `exp`.
fn token(algorithm: Algorithm, kid: Option<&str>, key: &EncodingKey, claims: &Value) -> String {
    let mut payload = json!({ "exp": now() + 3600 });
    payload.as_object_mut().unwrap().extend(claims.as_object().unwrap().clone());
    let header = Header { kid: kid.map(str::to_owned), ..Header::new(algorithm) };
    encode(&header, &payload, key).unwrap()
}

fn hmac_token(claims: &Value) -> String {
    token(Algorithm::HS256, None, &EncodingKey::from_secret(SECRET.as_bytes()), claims)
}

/// A directory with the configuration and the files that it names.
struct JwtDirectory(TempDir);

impl JwtDirectory {
    fn new(files: &[(&str, &str)]) -> Self {
        let place = Self(tempfile::tempdir().unwrap());
        for (name, content) in files {
            place.replace(name, content);
        }
        place
    }

    /// Replaces a file atomically.
    fn replace(&self, name: &str, content: &str) {
        let next = self.0.path().join("next");
        fs::write(&next, content).unwrap();
        fs::rename(&next, self.0.path().join(name)).unwrap();
    }

    fn start(&self, jwt: &str, rule: &str) -> Weir {
        let rules = format!("jwt: {{ {jwt} }}\nrules: [{{ name: a, {rule} }}]");
        self.replace("weir.yaml", &config("echo", &rules));
        Weir::start_file(&self.0.path().join("weir.yaml"))
    }
}

fn start(jwt: &str, rule: &str) -> (Weir, JwtDirectory) {
    let place = JwtDirectory::new(&[]);
    (place.start(jwt, rule), place)
}

fn bearer(token: &str) -> Request {
    Request::get("/").header("authorization", &format!("Bearer {token}"))
}

fn status(weir: &Weir, token: &str) -> u16 {
    fetch(weir.address(), &bearer(token)).status
}

/// Sends two requests under `limit: 1/d`: `[200, 429]` means that the token is counted, `[200, 200]` that it is not.
fn status_twice(weir: &Weir, token: &str) -> [u16; 2] {
    [status(weir, token), status(weir, token)]
}

fn secret_config(more: &str) -> String {
    format!("secret: {SECRET}, {more}")
}

const PER_SUB: &str = "key: { jwt: sub }, limit: 1/d";
const PER_SUB_OR_DENY: &str = "key: { jwt: sub }, limit: 1/d, on_missing: deny";

#[test]
fn each_subject_has_its_own_counter() {
    let (weir, _place) = start(&secret_config("leeway: 0s"), PER_SUB);
    let of = |sub: &str, more: u64| hmac_token(&json!({ "sub": sub, "jti": more }));
    assert_eq!(status_twice(&weir, &of("ada", 1)), [200, 429]);
    assert_eq!(status(&weir, &of("ada", 2)), 429, "tokens of one user share a counter");
    assert_eq!(status_twice(&weir, &of("eve", 1)), [200, 429]);
}

#[test]
fn claims_state_limits() {
    let limit = "limit: { from: { jwt: org.quota }, default: 1/d, max: 4/d }";
    let (weir, _place) = start(&secret_config("leeway: 0s"), &format!("key: {{ jwt: sub }}, {limit}"));
    let passing = |sub: &str, quota: Value| {
        let token = hmac_token(&json!({ "sub": sub, "org": { "quota": quota } }));
        (0..9).take_while(|_| status(&weir, &token) == 200).count()
    };
    assert_eq!(passing("ada", json!(2)), 2);
    assert_eq!(passing("ada", json!("3/d")), 1, "units used stay used");
    assert_eq!(passing("eve", json!(1000)), 4, "the maximum");
    assert_eq!([json!(null), json!([7])].map(|absent| passing("bob", absent)), [1, 0]);
    assert_eq!(weir.metric("weir_limit_values_unreadable_total", &[("rule", "a")]), 0.0);
    for (sub, unreadable) in
        [json!(0), json!(-1), json!(1.5), json!(true), json!("many")].into_iter().enumerate()
    {
        assert_eq!(passing(&sub.to_string(), unreadable), 1, "{sub}");
    }
    assert_eq!(weir.metric("weir_limit_values_unreadable_total", &[("rule", "a")]), 10.0);
    let forged =
        token(Algorithm::HS256, None, &EncodingKey::from_secret(b"another secret"), &json!({ "sub": "ada" }));
    assert_eq!(status(&weir, &forged), 200, "no key, so the rule is skipped");
}

#[test]
fn nested_and_numeric_claims_are_keys() {
    let (weir, _place) =
        start(&secret_config("leeway: 0s"), "key: { jwt: org.id }, limit: 1/d, on_missing: deny");
    assert_eq!(status_twice(&weir, &hmac_token(&json!({ "org": { "id": 7 } }))), [200, 429]);
    assert_eq!(status(&weir, &hmac_token(&json!({ "org": { "id": 8 } }))), 200);
    assert_eq!(status(&weir, &hmac_token(&json!({ "org.id": true }))), 200);
    for absent in [json!({}), json!({ "org": 7 }), json!({ "org": { "id": [7] } }), json!({ "id": 7 })] {
        assert_eq!(status(&weir, &hmac_token(&absent)), 403, "{absent}");
    }
}

#[test]
fn all_public_key_algorithms_are_supported() {
    let rsa = EncodingKey::from_rsa_pem(read_test_data("rsa.pem").as_bytes()).unwrap();
    let ed = EncodingKey::from_ed_pem(read_test_data("ed.pem").as_bytes()).unwrap();
    for (file, algorithm, key) in [
        ("rsa.pub.pem", Algorithm::RS256, rsa.clone()),
        ("rsa.pub.pem", Algorithm::PS512, rsa),
        ("ec.pub.pem", Algorithm::ES256, ec_key("ec.pem")),
        ("p384.pub.pem", Algorithm::ES384, ec_key("p384.pem")),
        ("ed.pub.pem", Algorithm::EdDSA, ed),
    ] {
        let place = JwtDirectory::new(&[("key.pem", &read_test_data(file))]);
        let weir = place.start("public_key: { file: key.pem }", PER_SUB_OR_DENY);
        let good = token(algorithm, None, &key, &json!({ "sub": "ada" }));
        assert_eq!(status_twice(&weir, &good), [200, 429], "{algorithm:?}");
        assert_eq!(status(&weir, &hmac_token(&json!({ "sub": "ada" }))), 403, "{algorithm:?}");
    }
}

#[test]
fn invalid_token_is_a_missing_key() {
    let forged = token(Algorithm::ES256, None, &ec_key("other.pem"), &json!({ "sub": "ada" }));
    for (on_missing, expected) in [("skip", [200, 200]), ("shared", [200, 429]), ("deny", [403, 403])] {
        let place = JwtDirectory::new(&[("key.pem", &read_test_data("ec.pub.pem"))]);
        let rule = format!("{PER_SUB}, on_missing: {on_missing}");
        let weir = place.start("public_key: { file: key.pem }", &rule);
        assert_eq!(status_twice(&weir, &forged), expected, "{on_missing}");
        let good = token(Algorithm::ES256, None, &ec_key("ec.pem"), &json!({ "sub": "ada" }));
        assert_eq!(status_twice(&weir, &good), [200, 429], "{on_missing}");
    }
}

#[test]
fn ambiguous_authorization_header_is_rejected_with_400() {
    let ada = hmac_token(&json!({ "sub": "ada" }));
    for rule in [PER_SUB, "match: { jwt: { sub: ada } }, limit: 1/d"] {
        let (weir, _place) = start(&secret_config("leeway: 0s"), rule);
        let ask = |lines: &[&str]| {
            let with = |request: Request, line: &&str| request.header("authorization", line);
            fetch(weir.address(), &lines.iter().fold(Request::get("/"), with)).status
        };
        let good = format!("Bearer {ada}");
        assert_eq!([ask(&[&good]), ask(&[&good])], [200, 429], "{rule}");
        assert_eq!(ask(&[&format!("Bearer\t{ada}")]), 429, "{rule}");
        assert_eq!(ask(&[&good, &good]), 429, "{rule}");
        for second in ["Bearer x", "x", "Basic eA=="] {
            assert_eq!([ask(&[&good, second]), ask(&[second, &good])], [400, 400], "{rule} {second}");
        }
        for loose in [format!("{good}="), format!("{good} x"), format!("Basic eA==, {good}")] {
            assert_eq!(ask(&[&loose]), 400, "{rule} {loose}");
        }
        // Credentials that are not a JWT are ignored, not rejected.
        for other in ["Basic dXNlcjpwYXNz", "Bearer opaque"] {
            assert_eq!([ask(&[other]), ask(&[other])], [200, 200], "{rule} {other}");
        }
    }
}

#[test]
fn expired_or_not_yet_valid_token_is_rejected() {
    let (weir, _place) =
        start(&secret_config("leeway: 30s, issuer: us, audience: [api, web]"), PER_SUB_OR_DENY);
    let with = |claims: Value| {
        let mut all = json!({ "iss": "us", "aud": "web" });
        all.as_object_mut().unwrap().extend(claims.as_object().unwrap().clone());
        hmac_token(&all)
    };
    assert_eq!(status(&weir, &with(json!({ "sub": "in time" }))), 200);
    assert_eq!(status(&weir, &with(json!({ "sub": "just late", "exp": now() - 5 }))), 200);
    assert_eq!(status(&weir, &with(json!({ "sub": "just early", "nbf": now() + 5 }))), 200);
    for wrong in [
        json!({ "exp": now() - 60 }),
        json!({ "exp": "9999999999" }),
        json!({ "nbf": now() + 60 }),
        json!({ "iss": "them" }),
        json!({ "aud": ["mail"] }),
    ] {
        let mut claims = wrong.clone();
        claims["sub"] = "wrong".into();
        assert_eq!(status(&weir, &with(claims)), 403, "{wrong}");
    }
}

#[test]
fn cached_token_expires() {
    let (weir, _place) =
        start(&secret_config("leeway: 0s"), "key: { jwt: sub }, limit: 1000/s, on_missing: deny");
    let brief = hmac_token(&json!({ "sub": "ada", "exp": now() + 2 }));
    assert_eq!(status_twice(&weir, &brief), [200, 200]);
    wait::until_true("the token to expire", || status(&weir, &brief) == 403);
}

#[test]
fn alg_none_and_algorithm_confusion_are_rejected() {
    let pem = read_test_data("ec.pub.pem");
    let place = JwtDirectory::new(&[("key.pem", &pem)]);
    let weir = place.start("public_key: { file: key.pem }", PER_SUB_OR_DENY);
    let confused = EncodingKey::from_secret(pem.as_bytes());
    assert_eq!(status(&weir, &token(Algorithm::HS256, None, &confused, &json!({ "sub": "ada" }))), 403);
    // {"alg":"none"} and {"sub":"ada"}
    for unsigned in ["eyJhbGciOiJub25lIn0.eyJzdWIiOiJhZGEifQ.", "eyJhbGciOiJub25lIn0.eyJzdWIiOiJhZGEifQ"] {
        assert_eq!(status(&weir, unsigned), 403);
    }
    // The payload alone is sufficient only with `trusted`, which is not set here.
    assert_eq!(status(&weir, "eyJzdWIiOiJhZGEifQ"), 403);
}

#[test]
fn trusted_payload_is_accepted_without_verification() {
    let (weir, _place) = start("trusted: true, header: x-jwt-payload", PER_SUB_OR_DENY);
    let with = |value: &str| fetch(weir.address(), &Request::get("/").header("x-jwt-payload", value)).status;
    assert_eq!([with("eyJzdWIiOiJhZGEifQ"), with("eyJzdWIiOiJhZGEifQ==")], [200, 429]);
    let whole = token(Algorithm::ES256, None, &ec_key("other.pem"), &json!({ "sub": "eve" }));
    assert_eq!([with(&whole), with(&whole)], [200, 429]);
    assert_eq!(status(&weir, &whole), 403, "the token is in another header");
}

#[test]
fn token_is_read_from_a_cookie() {
    let (weir, _place) = start(&secret_config("cookie: session"), PER_SUB_OR_DENY);
    let cookie = format!("theme=dark; session={}", hmac_token(&json!({ "sub": "ada" })));
    let ask = |cookie: &str| fetch(weir.address(), &Request::get("/").header("cookie", cookie)).status;
    assert_eq!([ask(&cookie), ask(&cookie)], [200, 429]);
    let token = hmac_token(&json!({ "sub": "ada" }));
    let (first, rest) = token.split_at(1);
    let byte = first.as_bytes()[0];
    for spelling in [
        format!("session=\"{token}\""),
        format!("session=%{byte:02x}{rest}"),
        format!("session=%25{byte:02x}{rest}"),
        format!("session=\"\\{byte:03o}{rest}\""),
        format!("session=\"\\{token}\""),
        format!("%73ession={token}"),
    ] {
        assert_eq!(ask(&spelling), 429, "{spelling}");
    }
}

fn jwks(keys: &[(&str, &str)]) -> String {
    let jwk = |(kid, file): &(&str, &str)| {
        let mut jwk = Jwk::from_encoding_key(&ec_key(file), Algorithm::ES256).unwrap();
        jwk.common.key_id = Some((*kid).to_owned());
        jwk
    };
    json!({ "keys": keys.iter().map(jwk).collect::<Vec<_>>() }).to_string()
}

#[test]
fn jwks_is_reloaded_and_a_damaged_one_rejected() {
    let place = JwtDirectory::new(&[("jwks.json", &jwks(&[("old", "other.pem")]))]);
    let weir = place.start("jwks: { file: jwks.json }", "key: { jwt: sub }, limit: 1000/s, on_missing: deny");
    let old = token(Algorithm::ES256, Some("old"), &ec_key("other.pem"), &json!({ "sub": "ada" }));
    let new = token(Algorithm::ES256, Some("new"), &ec_key("ec.pem"), &json!({ "sub": "ada" }));
    assert_eq!((status_twice(&weir, &old), status_twice(&weir, &new)), ([200, 200], [403, 403]));

    let before = weir.generation();
    place.replace("jwks.json", &jwks(&[("old", "other.pem"), ("new", "ec.pem")]));
    weir.until_reloaded(before);
    assert_eq!((status(&weir, &old), status(&weir, &new)), (200, 200), "both keys are valid");

    let (before, rejected) = (weir.generation(), weir.rejected_reloads());
    let cut = jwks(&[("new", "ec.pem")]);
    place.replace("jwks.json", &cut[..cut.len() / 2]);
    wait::until_true("the rejection", || weir.rejected_reloads() > rejected);
    assert_eq!((status(&weir, &old), status(&weir, &new)), (200, 200), "the old key set stays in force");
    assert_eq!(weir.generation(), before);
    let problems = weir.admin_json("/server_info")["config"]["last_reload"]["problems"].to_string();
    assert!(problems.contains("jwks.json:1:") && problems.contains("not valid JSON"), "{problems}");

    place.replace("jwks.json", &jwks(&[("new", "ec.pem")]));
    weir.until_reloaded(before);
    // Cached verifications of tokens with the old key are dropped.
    assert_eq!((status(&weir, &old), status(&weir, &new)), (403, 200));
}

#[test]
fn secrets_and_tokens_are_never_shown() {
    let log = tempfile::tempdir().unwrap();
    let lines = log.path().join("access.log");
    let place = JwtDirectory::new(&[]);
    let rules = format!(
        "access_log: {{ path: {}, format: json }}\njwt: {{ secret: {SECRET} }}\nrules: [{{ name: a, {PER_SUB} }}]",
        lines.display()
    );
    place.replace("weir.yaml", &config("echo", &rules));
    let weir = Weir::start_file(&place.0.path().join("weir.yaml"));
    let token = hmac_token(&json!({ "sub": "ada" }));
    assert_eq!(status_twice(&weir, &token), [200, 429]);
    weir.assert_reload_rejected(&config("echo", &rules.replace(SECRET, &format!("'{SECRET}${{'"))));
    let mut shown = wait::until("two lines", || {
        let text = fs::read_to_string(&lines).unwrap_or_default();
        (text.lines().count() >= 2).then_some(text)
    });
    for path in ["/config_dump", "/server_info", "/limits", "/metrics", "/stats"] {
        shown.push_str(&weir.admin_get(path).body.text());
    }
    shown.push_str(&weir.log().concat());
    let signature = token.rsplit('.').next().unwrap();
    assert!(!shown.contains(SECRET) && !shown.contains(signature), "{shown}");
    assert!(shown.contains("[redacted]") && shown.contains("{jwt: sub}"), "{shown}");
}

#[test]
fn rules_match_claims() {
    let place = JwtDirectory::new(&[]);
    let rules = format!(
        "jwt: {{ secret: {SECRET} }}\nrules:\n  - {{ name: staff, match: {{ jwt: {{ staff: true }} }}, action: allow }}\n  \
         - {{ name: nobody, match: {{ jwt: {{ sub: \"!present\" }} }}, action: deny }}\n  \
         - {{ name: free, match: {{ jwt: {{ plan.name: [free, trial], level: 1 }} }}, key: {{ jwt: sub }}, limit: 1/d }}"
    );
    place.replace("weir.yaml", &config("echo", &rules));
    let weir = Weir::start_file(&place.0.path().join("weir.yaml"));
    let of = |sub: &str, plan: &str, level: u8, staff: bool| {
        hmac_token(&json!({ "sub": sub, "plan": { "name": plan }, "level": level, "staff": staff }))
    };
    assert_eq!(status_twice(&weir, &of("ada", "free", 1, false)), [200, 429]);
    assert_eq!(status_twice(&weir, &of("bob", "trial", 1, false)), [200, 429]);
    assert_eq!(status_twice(&weir, &of("cyd", "pro", 1, false)), [200, 200]);
    assert_eq!(status_twice(&weir, &of("dan", "free", 2, false)), [200, 200]);
    assert_eq!(status_twice(&weir, &of("eve", "free", 1, true)), [200, 200]);
    assert_eq!(status(&weir, &hmac_token(&json!({}))), 403);
    assert_eq!(fetch(weir.address(), &Request::get("/")).status, 403);
}

#[test]
fn api_keys_from_files_are_matched_and_reloaded() {
    let place =
        JwtDirectory::new(&[("partners.txt", "# partners\nalpha-1#x\nbeta\n"), ("revoked.txt", "gamma\n")]);
    let rules = "rules:\n  - { name: revoked, match: { header: { x-api-key: { file: revoked.txt } } }, action: deny }\n  \
         - { name: partners, match: { header: { x-api-key: [root, { file: partners.txt }] } }, action: allow }\n  \
         - { name: all, key: [], limit: 1/d }";
    place.replace("weir.yaml", &config("echo", rules));
    let weir = Weir::start_file(&place.0.path().join("weir.yaml"));
    let with = |key: &str| fetch(weir.address(), &Request::get("/").header("x-api-key", key)).status;
    assert_eq!([with("other"), with("other")], [200, 429], "other keys are limited");
    assert_eq!(
        ["alpha-1#x", "beta", "root", "gamma", "alpha-1", "# partners"].map(with),
        [200, 200, 200, 403, 429, 429]
    );
    let before = weir.generation();
    place.replace("partners.txt", "delta\n");
    weir.until_reloaded(before);
    assert_eq!(["beta", "delta", "root"].map(with), [429, 200, 200]);
    let dump = weir.admin_get("/config_dump").body.text();
    assert!(!dump.contains("delta") && !dump.contains("root"), "{dump}");
}

#[test]
fn plan_is_assigned_by_claim() {
    let place = JwtDirectory::new(&[]);
    let rules = format!(
        "jwt: {{ secret: {SECRET} }}\nplans: {{ of: {{ jwt: sub }}, members: {{ ada: pro }}, default: free }}\nrules:\n  \
         - {{ name: free, match: {{ plan: free }}, key: [], limit: 1/d }}\n  \
         - {{ name: pro, match: {{ plan: pro }}, key: [], limit: 2/d }}"
    );
    place.replace("weir.yaml", &config("echo", &rules));
    let weir = Weir::start_file(&place.0.path().join("weir.yaml"));
    let [ada, eve] = ["ada", "eve"].map(|sub| hmac_token(&json!({ "sub": sub })));
    let asked = [&ada, &eve, &ada, &ada, &eve].map(|token| status(&weir, token));
    assert_eq!(asked, [200, 200, 200, 429, 429]);
}
