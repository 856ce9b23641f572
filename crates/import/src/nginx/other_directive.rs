//! Directives that concern limits, or the address of a client, and of which no rule becomes.

use super::super::network::parse_network;
use super::super::remark::{Effect, Remark};
use super::syntax::Directive;

/// Returns what is said of a directive that concerns limits and is not converted.
pub(super) fn other_directive(name: &str, directive: &Directive) -> Option<Remark> {
    let first = directive.argument(0);
    let (effect, text) = match name {
        "limit_except" => {
            (Effect::Looser, "`limit_except` is not converted: use `action: deny` with `method`".to_owned())
        }
        "limit_rate"
        | "limit_rate_after"
        | "proxy_limit_rate"
        | "fastcgi_limit_rate"
        | "scgi_limit_rate"
        | "uwsgi_limit_rate"
        | "proxy_download_rate"
        | "proxy_upload_rate" => {
            let side = if name == "proxy_upload_rate" { "request" } else { "response" };
            let text = format!(
                "`{name} {first}` is not converted: write a rule with `key: stream` and `bandwidth: {{ {side}: … }}`"
            );
            (Effect::Looser, text)
        }
        "limit_zone" => {
            let text = "`limit_zone` is not converted: nginx 1.7.6 has removed it; `limit_conn_zone` takes its place";
            (Effect::Looser, text.to_owned())
        }
        "set_real_ip_from" => set_real_ip_from(first),
        "real_ip_header" => real_ip_header(first),
        "real_ip_recursive" if first == "on" => {
            (Effect::None, "`real_ip_recursive on` is what `client_ip.trusted_proxies` does".to_owned())
        }
        "real_ip_recursive" => {
            let text = format!(
                "`real_ip_recursive {first}` takes the last address, `client_ip.trusted_proxies` the last that is not \
                 of a proxy"
            );
            (Effect::Differs, text)
        }
        _ => return None,
    };
    Some(Remark::new(effect, text))
}

fn set_real_ip_from(proxy: &str) -> (Effect, String) {
    const TRUSTED: &str = "`client_ip.trusted_proxies`";
    let text = if proxy == "unix:" {
        format!(
            "`set_real_ip_from unix:` is not a rule: clients of a Unix socket count as 127.0.0.1, add it to {TRUSTED}"
        )
    } else if parse_network(proxy).is_none() {
        format!("`set_real_ip_from {proxy}` is not a rule: add the addresses of this name to {TRUSTED}")
    } else if is_everyone(proxy) {
        format!(
            "`set_real_ip_from {proxy}` lets every client choose its address, and is not converted: list your proxies in \
             {TRUSTED}"
        )
    } else {
        format!("`set_real_ip_from` is not a rule: add {proxy} to {TRUSTED}")
    };
    (Effect::Differs, text)
}

/// Whether a network has all addresses.
fn is_everyone(network: &str) -> bool {
    parse_network(network).is_some_and(|(_, length)| length == 0)
}

fn real_ip_header(name: &str) -> (Effect, String) {
    match name.to_ascii_lowercase().replace('-', "_").as_str() {
        "x_forwarded_for" => {
            let text = "`real_ip_header X-Forwarded-For` is what `client_ip.trusted_proxies` does".to_owned();
            (Effect::None, text)
        }
        "proxy_protocol" => {
            let text = "`real_ip_header proxy_protocol` is not a rule: set `proxy_protocol` of the listener"
                .to_owned();
            (Effect::Differs, text)
        }
        _ => {
            let lower = name.to_ascii_lowercase();
            let text = format!(
                "`real_ip_header {name}` needs `client_ip.header: {lower}`, which Weir does not have yet: without it, \
                 rules count all clients behind a proxy as one, unless the proxy sends X-Forwarded-For"
            );
            (Effect::Differs, text)
        }
    }
}
