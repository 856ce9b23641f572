//! TLS towards upstreams: whom we believe, what we show, and whom we ask for.

use std::sync::Arc;

use rustls::pki_types::ServerName;

use super::tls::pair;
use crate::config::at::At;
use crate::config::files::Files;
use crate::config::files::certificates::AUTHORITIES;
use crate::config::parse::UpstreamPlace;
use crate::config::problem::{Fault, Report, quoted};
use crate::config::raw;
use crate::tls::client::{Settings, Trust};
use crate::tls::pem::Authorities;
use crate::upstream::Address;

/// TLS of what stands at `at` and is at `places`, which stand at `address`; `None` where it is plain, or there is a problem.
pub(super) fn client(
    raw: Option<&raw::UpstreamTls>,
    places: &[UpstreamPlace],
    (at, address): (At<'_>, At<'_>),
    files: &mut Files,
    report: &mut Report<'_>,
) -> Option<Settings> {
    let is_secure = places.first()?.is_secure;
    if places.iter().any(|place| place.is_secure != is_secure) {
        let fault = Fault::new("some addresses with `https://` and some without, expected all or none");
        report.value(address, fault.hint("two upstreams can be told apart by `match`"));
        return None;
    }
    let own = at.key("tls");
    let Some(raw) = raw else {
        names(places, address, report);
        let trust = is_secure.then(|| system(address, report)).flatten()?;
        return Some(Settings { trust, pair: None, name: None });
    };
    if !is_secure {
        let fault = Fault::new("`tls` has no meaning for a plain address");
        report.key(own, fault.hint("an address of TLS is written `https://host:port`"));
        return None;
    }
    let trust = trust(raw, own, files, report);
    let pair = (raw.certificate.is_some() || raw.key.is_some())
        .then(|| pair((raw.certificate.as_deref(), raw.key.as_deref()), "the upstream", own, files, report));
    let name = match &raw.server_name {
        Some(name) => report.take(own.key("server_name"), server_name(name)).map(Some),
        None => Some(None).filter(|_| names(places, address, report)),
    };
    Some(Settings { trust: trust?, pair: pair.map_or(Some(None), |pair| pair.map(Some))?, name: name? })
}

fn trust(raw: &raw::UpstreamTls, at: At<'_>, files: &mut Files, report: &mut Report<'_>) -> Option<Trust> {
    match (raw.verify, raw.ca.as_deref()) {
        (Some(raw::Verify::Switch(false)), _) => {
            let fault = Fault::new("expected `true` or `insecure`, got false");
            report.value(at.key("verify"), fault.hint("`insecure` says what it is"));
            None
        }
        (Some(raw::Verify::Not(raw::NotVerified::Insecure)), Some(_)) => {
            report.key(at.key("ca"), "`ca` has no meaning with `verify: insecure`");
            None
        }
        (Some(raw::Verify::Not(raw::NotVerified::Insecure)), None) => {
            let note = "whoever answers is taken for the upstream, and gets every request to it";
            report.note(at.key("verify"), note);
            Some(Trust::Anybody)
        }
        (Some(raw::Verify::Switch(true)) | None, Some(name)) => {
            let authorities = files.load(name, &AUTHORITIES, at.key("ca"), report)?;
            Some(Trust::Named { authorities, file: files.path(name).display().to_string().into() })
        }
        (Some(raw::Verify::Switch(true)) | None, None) if report.is_faulty(at.key("ca")) => None,
        (Some(raw::Verify::Switch(true)) | None, None) => system(at, report),
    }
}

fn system(at: At<'_>, report: &mut Report<'_>) -> Option<Trust> {
    let authorities = Authorities::of_system();
    if authorities.is_none() {
        let fault = Fault::new("this system has no authorities to believe");
        report.value(at, fault.hint("`tls.ca` names a file of them"));
    }
    authorities.map(|authorities| Trust::System(Arc::new(authorities)))
}

/// Whether each host is one that a certificate can be for.
fn names(places: &[UpstreamPlace], address: At<'_>, report: &mut Report<'_>) -> bool {
    let alien = places.iter().find_map(|place| match &place.address {
        Address::Tcp { host, .. } if place.is_secure && ServerName::try_from(&**host).is_err() => Some(host),
        Address::Tcp { .. } | Address::Unix(_) | Address::Echo => None,
    });
    if let Some(host) = alien {
        let fault = Fault::new(format!("no certificate can be for this host, got {}", quoted(host)));
        report.value(address, fault.hint("`tls.server_name` names another"));
    }
    alien.is_none()
}

fn server_name(name: &str) -> Result<ServerName<'static>, Fault> {
    ServerName::try_from(name.to_owned())
        .map_err(|_| Fault::new(format!("expected the name of a host or an address, got {}", quoted(name))))
}
