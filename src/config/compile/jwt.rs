//! JSON Web Tokens: where they are found, which keys verify them, and whether any rule uses their claims.

use jiff::Timestamp as Moment;
use jsonwebtoken::Algorithm;

use super::scope::Scope;
use super::{duration, each, given, matching};
use crate::config::at::At;
use crate::config::defaults;
use crate::config::files::keys::{JWKS, Jwks, PUBLIC_KEY, SECRET};
use crate::config::files::members::secret;
use crate::config::files::{Files, Flaw, tell};
use crate::config::problem::{Fault, Report, Severity, listed, named};
use crate::config::raw;
use crate::identify::jwt::keys::{MAX_KEYS_TRIED, VerificationKey};
use crate::identify::jwt::source::TokenSource;
use crate::identify::jwt::{JwtSettings, TokenTrust, Verifier};
use crate::limiter::timestamp::Timestamp;

/// Minimum length of a secret in bytes. A secret must be at least as long as the output of its hash (RFC 7518
/// section 3.2); this is the length for SHA-256, the shortest.
const SHORTEST_SECRET: usize = 32;

/// Compiles the verifier of tokens; `None` if no rule uses a claim.
pub(super) fn compile(
    raw: Option<&raw::Jwt>,
    at: At<'_>,
    scope: Scope<'_>,
    report: &mut Report<'_>,
) -> Option<Verifier> {
    let jwt = raw?;
    let (source, trust) = (source(jwt, at, report), trust(jwt, at, scope.files, report));
    let issuers = texts(jwt.issuer.as_ref(), at.key("issuer"), report);
    let audiences = texts(jwt.audience.as_ref(), at.key("audience"), report);
    let leeway = duration(jwt.leeway.as_ref(), at.key("leeway"), report).unwrap_or(defaults::JWT_LEEWAY);
    let claims = scope.claims.into_inner();
    if claims.is_empty() {
        report.note(at, "not used, because no rule uses a claim");
        return None;
    }
    let secret = report.take(at, secret())?;
    let settings = JwtSettings { source: source?, trust: trust?, issuers, audiences, leeway };
    Some(Verifier::new(settings, claims, secret))
}

fn source(raw: &raw::Jwt, at: At<'_>, report: &mut Report<'_>) -> Option<TokenSource> {
    match (&raw.header, &raw.cookie) {
        (Some(_), Some(_)) => {
            report.key(at.key("cookie"), "both `header` and `cookie`, expected one of them");
            None
        }
        (_, Some(cookie)) => {
            report.take(at.key("cookie"), matching::cookie_name(cookie).map(TokenSource::Cookie))
        }
        (Some(header), None) => {
            report.take(at.key("header"), matching::header_name(header).map(TokenSource::Header))
        }
        (None, None) => Some(TokenSource::Header(http::header::AUTHORIZATION)),
    }
}

fn trust(raw: &raw::Jwt, at: At<'_>, files: &mut Files, report: &mut Report<'_>) -> Option<TokenTrust> {
    let reasons = [
        ("secret", raw.secret.is_some()),
        ("public_key", raw.public_key.is_some()),
        ("jwks", raw.jwks.is_some()),
        ("trusted", raw.trusted == Some(true)),
    ];
    let given: Vec<&str> = given(reasons).collect();
    let [reason] = given[..] else {
        if !report.is_faulty(at) {
            let got = if given.is_empty() { "none".to_owned() } else { listed(given) };
            let expected = "expected exactly one of `secret`, `public_key`, `jwks`, `trusted: true`";
            report.value(at, format!("{expected}, got {got}"));
        }
        return None;
    };
    if reason == "trusted" {
        if raw.algorithms.is_some() {
            report.key(at.key("algorithms"), "`algorithms` has no meaning with `trusted: true`");
        }
        let fault = "signatures are not verified, so clients that bypass the gateway can forge any claim";
        report.note(at.key("trusted"), fault);
        return Some(TokenTrust::PreVerified);
    }
    let keys = match reason {
        "secret" => secrets(raw, at, files, report),
        "public_key" => public_keys(raw, at, files, report),
        _ => set_of_keys(raw, at, files, report)?,
    };
    if report.is_faulty(at) {
        return None;
    }
    let keys = suitable(keys, raw, at, report)?;
    warn_of_untried(&keys, at.key(reason), report);
    Some(TokenTrust::Signed(keys.into_iter().collect()))
}

/// Adds a note if there are more keys for an algorithm than are tried. A token without a key name that a
/// later key has signed would always fail, without an obvious reason.
fn warn_of_untried(keys: &[VerificationKey], at: At<'_>, report: &mut Report<'_>) {
    let of = |algorithm: &Algorithm| keys.iter().filter(|key| key.is_for(*algorithm)).count();
    let crowded =
        keys.iter().flat_map(VerificationKey::algorithms).find(|algorithm| of(algorithm) > MAX_KEYS_TRIED);
    let Some(algorithm) = crowded else { return };
    let count = of(algorithm);
    let fault = Fault::new(format!(
        "{count} keys for `{algorithm:?}`, but tokens without `kid` are tried with only {MAX_KEYS_TRIED}"
    ));
    let hint = if keys.iter().all(|key| key.id().is_some()) {
        "configure the issuer to set `kid` in its tokens"
    } else {
        "use `jwks`, in which each key has a `kid`"
    };
    report.note(at, fault.hint(hint));
}

fn secrets(raw: &raw::Jwt, at: At<'_>, files: &mut Files, report: &mut Report<'_>) -> Vec<VerificationKey> {
    let Some(secrets) = &raw.secret else { return Vec::new() };
    each(secrets, at.key("secret"), |secret, at| {
        let (key, length) = match secret {
            raw::SecretOrFile::Text(text) if text.expose().is_empty() => {
                report.value(at, "empty, expected a secret");
                return None;
            }
            raw::SecretOrFile::Text(text) => {
                (VerificationKey::from_secret(text.expose().as_bytes()), text.expose().len())
            }
            raw::SecretOrFile::File(name) => {
                let secret = files.load(name.file.as_deref()?, &SECRET, at.key("file"), report)?;
                (VerificationKey::from_secret(&secret.0), secret.0.len())
            }
        };
        if length < SHORTEST_SECRET {
            report.note(at, format!("secrets shorter than {SHORTEST_SECRET} bytes can be brute-forced"));
        }
        Some(key)
    })
}

fn public_keys(
    raw: &raw::Jwt,
    at: At<'_>,
    files: &mut Files,
    report: &mut Report<'_>,
) -> Vec<VerificationKey> {
    let Some(keys) = &raw.public_key else { return Vec::new() };
    each(keys, at.key("public_key"), |name, at| {
        files
            .load(name.file.as_deref()?, &PUBLIC_KEY, at.key("file"), report)
            .map(|key| VerificationKey::clone(&key))
    })
}

/// Returns the valid keys of the set. An expired key left over from a rotation is a note. If all keys have
/// expired, the file is no longer updated, which is a problem.
fn set_of_keys(
    raw: &raw::Jwt,
    at: At<'_>,
    files: &mut Files,
    report: &mut Report<'_>,
) -> Option<Vec<VerificationKey>> {
    let name = raw.jwks.as_ref()?.file.as_deref()?;
    let (jwks_at, now) = (at.key("jwks"), files.now());
    let at = jwks_at.key("file");
    let set = files.load(name, &JWKS, at, report)?;
    let Jwks { keys, skipped } = &*set;
    let path = files.path(name);
    let (expired, valid): (Vec<_>, Vec<_>) =
        keys.iter().partition(|(key, _)| key.expires().is_some_and(|expires| expires <= now));
    let severity = if valid.is_empty() { Severity::Problem } else { Severity::Note };
    for (key, (line, column)) in expired {
        let flaw = Flaw::at(*line, *column, expired_since(key));
        tell(&flaw, severity, &path, at, report);
    }
    skipped.iter().for_each(|flaw| tell(flaw, Severity::Note, &path, at, report));
    Some(valid.into_iter().map(|(key, _)| key.clone()).collect())
}

fn expired_since(key: &VerificationKey) -> String {
    let seconds = key.expires().map_or(0, Timestamp::as_secs);
    let moment = i64::try_from(seconds).ok().and_then(|seconds| Moment::from_second(seconds).ok());
    let name = key.id().map_or_else(|| "a key".to_owned(), |id| format!("the key {}", named(id)));
    match moment {
        Some(moment) => format!("{name} expired at {moment}"),
        None => format!("{name} has expired"),
    }
}

/// Restricts the keys to the configured algorithms, and reports algorithms for which there is no key.
fn suitable(
    keys: Vec<VerificationKey>,
    raw: &raw::Jwt,
    at: At<'_>,
    report: &mut Report<'_>,
) -> Option<Vec<VerificationKey>> {
    let Some(wanted) = &raw.algorithms else { return Some(keys) };
    let at = at.key("algorithms");
    let mut algorithms = Vec::new();
    each(wanted, at, |wanted, at| {
        let algorithm = wanted.0;
        if !keys.iter().any(|key| key.is_for(algorithm)) {
            let fault = Fault::new(format!("no key for `{algorithm:?}`"));
            report.value(
                at,
                match keys.first() {
                    Some(key) if !key.is_secret() && is_secret(algorithm) => {
                        fault.hint("it needs `secret`: with a public key, any client could sign tokens")
                    }
                    _ => fault.hint(format!("the keys are for {}", known(&keys))),
                },
            );
        }
        algorithms.push(algorithm);
        Some(())
    });
    (!report.is_faulty(at)).then(|| keys.into_iter().filter_map(|key| key.only_for(&algorithms)).collect())
}

fn known(keys: &[VerificationKey]) -> String {
    let mut names: Vec<String> = Vec::new();
    for algorithm in keys.iter().flat_map(VerificationKey::algorithms) {
        let name = format!("{algorithm:?}");
        if !names.contains(&name) {
            names.push(name);
        }
    }
    listed(names.iter().map(String::as_str))
}

fn texts(raw: Option<&raw::OneOrMany<String>>, at: At<'_>, report: &mut Report<'_>) -> Box<[Box<str>]> {
    let Some(raw) = raw else { return Box::default() };
    let texts = each(raw, at, |text, at| {
        if text.is_empty() {
            report.value(at, "must not be empty");
        }
        Some(text.as_str().into())
    });
    texts.into()
}

const fn is_secret(algorithm: Algorithm) -> bool {
    matches!(algorithm, Algorithm::HS256 | Algorithm::HS384 | Algorithm::HS512)
}
