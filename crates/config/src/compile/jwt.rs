//! JSON Web Tokens: where they are found, which keys verify them, and whether any rule uses their claims.

use jiff::Timestamp as Moment;
use jsonwebtoken::Algorithm;

use super::context::CompileContext;
use super::{given_keys, map_items, matching};
use crate::at::At;
use crate::data_files::jwt_keys::{JWKS, Jwks, PUBLIC_KEY, SECRET};
use crate::data_files::members::random_secret;
use crate::data_files::{DataFileError, DataFiles, report_error};
use crate::defaults;
use crate::diagnostic::{Severity, ValueError};
use crate::quoting::{backquoted, backquoted_list};
use crate::raw;
use weir_limiter::timestamp::Timestamp;
use weir_policy::identify::jwt::keys::{MAX_KEYS_TRIED, VerificationKey};
use weir_policy::identify::jwt::source::TokenSource;
use weir_policy::identify::jwt::{JwtSettings, TokenTrust, Verifier};

/// Minimum length of a secret in bytes. A secret must be at least as long as the output of its hash (RFC 7518
/// section 3.2); this is the length for SHA-256, the shortest.
const MIN_SECRET_LEN: usize = 32;

/// Compiles the verifier of tokens; `None` if no rule uses a claim.
pub(super) fn compile(raw: Option<&raw::Jwt>, at: At<'_>, context: CompileContext<'_>) -> Option<Verifier> {
    let jwt = raw?;
    let (source, trust) = (compile_source(jwt, at), compile_trust(jwt, at, context.files));
    let issuers = read_texts(jwt.issuer.as_ref(), at.key("issuer"));
    let audiences = read_texts(jwt.audience.as_ref(), at.key("audience"));
    let leeway = at.key("leeway").duration(jwt.leeway.as_ref()).unwrap_or(defaults::JWT_LEEWAY);
    let claims = context.used_claims.into_inner();
    if claims.is_empty() {
        at.note("not used, because no rule uses a claim");
        return None;
    }
    let secret = at.ok(random_secret())?;
    let settings = JwtSettings { source: source?, trust: trust?, issuers, audiences, leeway };
    Some(Verifier::new(settings, claims, secret))
}

fn compile_source(raw: &raw::Jwt, at: At<'_>) -> Option<TokenSource> {
    match (&raw.header, &raw.cookie) {
        (Some(_), Some(_)) => {
            at.key("cookie").key_error("both `header` and `cookie`, expected one of them");
            None
        }
        (_, Some(cookie)) => {
            at.key("cookie").ok(matching::parse_cookie_name(cookie).map(TokenSource::Cookie))
        }
        (Some(header), None) => {
            at.key("header").ok(matching::parse_header_name(header).map(TokenSource::Header))
        }
        (None, None) => Some(TokenSource::Header(http::header::AUTHORIZATION)),
    }
}

fn compile_trust(raw: &raw::Jwt, at: At<'_>, files: &mut DataFiles) -> Option<TokenTrust> {
    let key_sources = [
        ("secret", raw.secret.is_some()),
        ("public_key", raw.public_key.is_some()),
        ("jwks", raw.jwks.is_some()),
        ("trusted", raw.trusted == Some(true)),
    ];
    let given: Vec<&str> = given_keys(key_sources).collect();
    let [key_source] = given[..] else {
        if !at.is_reported() {
            let got = if given.is_empty() { "none".to_owned() } else { backquoted_list(given) };
            let expected = "expected exactly one of `secret`, `public_key`, `jwks`, `trusted: true`";
            at.error(format!("{expected}, got {got}"));
        }
        return None;
    };
    if key_source == "trusted" {
        if raw.algorithms.is_some() {
            at.inapplicable_key("algorithms", "with `trusted: true`");
        }
        let error = "signatures are not verified, so clients that bypass the gateway can forge any claim";
        at.key("trusted").note(error);
        return Some(TokenTrust::PreVerified);
    }
    let keys = match key_source {
        "secret" => load_secrets(raw, at, files),
        "public_key" => load_public_keys(raw, at, files),
        _ => load_key_set(raw, at, files)?,
    };
    if at.is_reported() {
        return None;
    }
    let keys = restrict_algorithms(keys, raw, at)?;
    note_untried_keys(&keys, at.key(key_source));
    Some(TokenTrust::Signed(keys.into_iter().collect()))
}

/// Adds a note if there are more keys for an algorithm than are tried. A token without a key name that a
/// later key has signed would always fail, without an obvious reason.
fn note_untried_keys(keys: &[VerificationKey], at: At<'_>) {
    let key_count = |algorithm: &Algorithm| keys.iter().filter(|key| key.is_for(*algorithm)).count();
    let over_limit = keys
        .iter()
        .flat_map(VerificationKey::algorithms)
        .find(|algorithm| key_count(algorithm) > MAX_KEYS_TRIED);
    let Some(algorithm) = over_limit else { return };
    let count = key_count(algorithm);
    let error = ValueError::new(format!(
        "{count} keys for `{algorithm:?}`, but tokens without `kid` are tried with only {MAX_KEYS_TRIED}"
    ));
    let hint = if keys.iter().all(|key| key.id().is_some()) {
        "configure the issuer to set `kid` in its tokens"
    } else {
        "use `jwks`, in which each key has a `kid`"
    };
    at.note(error.with_hint(hint));
}

fn load_secrets(raw: &raw::Jwt, at: At<'_>, files: &mut DataFiles) -> Vec<VerificationKey> {
    let Some(secrets) = &raw.secret else { return Vec::new() };
    map_items(secrets, at.key("secret"), |secret, at| {
        let (key, length) = match secret {
            raw::SecretOrFile::Text(text) if text.expose().is_empty() => {
                at.error("empty, expected a secret");
                return None;
            }
            raw::SecretOrFile::Text(text) => {
                (VerificationKey::from_secret(text.expose().as_bytes()), text.expose().len())
            }
            raw::SecretOrFile::File(name) => {
                let secret = at.key("file").load(files, name.file.as_deref()?, &SECRET)?;
                (VerificationKey::from_secret(&secret.0), secret.0.len())
            }
        };
        if length < MIN_SECRET_LEN {
            at.note(format!("secrets shorter than {MIN_SECRET_LEN} bytes can be brute-forced"));
        }
        Some(key)
    })
}

fn load_public_keys(raw: &raw::Jwt, at: At<'_>, files: &mut DataFiles) -> Vec<VerificationKey> {
    let Some(keys) = &raw.public_key else { return Vec::new() };
    map_items(keys, at.key("public_key"), |name, at| {
        at.key("file").load(files, name.file.as_deref()?, &PUBLIC_KEY).map(|key| VerificationKey::clone(&key))
    })
}

/// Returns the valid keys of the set. An expired key left over from a rotation is a note. If all keys have
/// expired, the file is no longer updated, which is a problem.
fn load_key_set(raw: &raw::Jwt, at: At<'_>, files: &mut DataFiles) -> Option<Vec<VerificationKey>> {
    let name = raw.jwks.as_ref()?.file.as_deref()?;
    let (jwks_at, now) = (at.key("jwks"), files.now());
    let at = jwks_at.key("file");
    let set = at.load(files, name, &JWKS)?;
    let Jwks { keys, skipped } = &*set;
    let path = files.resolve_path(name);
    let (expired, valid): (Vec<_>, Vec<_>) =
        keys.iter().partition(|(key, _)| key.expires().is_some_and(|expires| expires <= now));
    let severity = if valid.is_empty() { Severity::Error } else { Severity::Note };
    for (key, (line, column)) in expired {
        let flaw = DataFileError::at_position(*line, *column, expiry_message(key));
        report_error(&flaw, severity, &path, at);
    }
    skipped.iter().for_each(|flaw| report_error(flaw, Severity::Note, &path, at));
    Some(valid.into_iter().map(|(key, _)| key.clone()).collect())
}

fn expiry_message(key: &VerificationKey) -> String {
    let seconds = key.expires().map_or(0, Timestamp::as_secs);
    let moment = i64::try_from(seconds).ok().and_then(|seconds| Moment::from_second(seconds).ok());
    let name = key.id().map_or_else(|| "a key".to_owned(), |id| format!("the key {}", backquoted(id)));
    match moment {
        Some(moment) => format!("{name} expired at {moment}"),
        None => format!("{name} has expired"),
    }
}

/// Restricts the keys to the configured algorithms, and reports algorithms for which there is no key.
fn restrict_algorithms(
    keys: Vec<VerificationKey>,
    raw: &raw::Jwt,
    at: At<'_>,
) -> Option<Vec<VerificationKey>> {
    let Some(configured) = &raw.algorithms else { return Some(keys) };
    let at = at.key("algorithms");
    let mut algorithms = Vec::new();
    map_items(configured, at, |wanted, at| {
        let algorithm = wanted.0;
        if !keys.iter().any(|key| key.is_for(algorithm)) {
            let error = ValueError::new(format!("no key for `{algorithm:?}`"));
            at.error(match keys.first() {
                Some(key) if !key.is_secret() && is_hmac(algorithm) => {
                    error.with_hint("it needs `secret`: with a public key, any client could sign tokens")
                }
                _ => error.with_hint(format!("the keys are for {}", list_algorithms(&keys))),
            });
        }
        algorithms.push(algorithm);
        Some(())
    });
    (!at.is_reported()).then(|| keys.into_iter().filter_map(|key| key.only_for(&algorithms)).collect())
}

fn list_algorithms(keys: &[VerificationKey]) -> String {
    let mut names: Vec<String> = Vec::new();
    for algorithm in keys.iter().flat_map(VerificationKey::algorithms) {
        let name = format!("{algorithm:?}");
        if !names.contains(&name) {
            names.push(name);
        }
    }
    backquoted_list(names.iter().map(String::as_str))
}

fn read_texts(raw: Option<&raw::OneOrMany<String>>, at: At<'_>) -> Box<[Box<str>]> {
    let Some(raw) = raw else { return Box::default() };
    let texts = map_items(raw, at, |text, at| {
        if text.is_empty() {
            at.error("must not be empty");
        }
        Some(text.as_str().into())
    });
    texts.into()
}

const fn is_hmac(algorithm: Algorithm) -> bool {
    matches!(algorithm, Algorithm::HS256 | Algorithm::HS384 | Algorithm::HS512)
}
