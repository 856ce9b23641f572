//! Active health checks of endpoints, once per process.

use std::io;
use std::pin::pin;
use std::sync::{Arc, Weak};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::runtime::Handle;

use super::cluster::Cluster;
use super::connect::{self, HandshakeName};
use super::host::{ConnectTarget, FAILED_CHECK, UpstreamHost};
use super::http2;
use super::server_names;
use super::settings::HealthCheck;
use weir_net::jitter::jittered;
use weir_net::tls::AlpnProtocol;
use weir_net::transport::Transport;

/// Maximum number of bytes read while looking for the status line.
const MAX_STATUS_LINE_LENGTH: usize = 1024;
/// User-Agent of the requests.
const USER_AGENT: &str = "weir-health-check";

/// Results of the checks of one endpoint.
#[derive(Debug, Default)]
struct CheckHistory {
    /// Whether there was a check before.
    has_result: bool,
    successes: u32,
    failures: u32,
}

/// Checks `host` periodically on `runtime`, if that is configured, for as long as it is an endpoint of `cluster`.
pub(super) fn start(cluster: &Arc<Cluster>, host: &Arc<UpstreamHost>, runtime: &Handle) {
    if cluster.settings().health_check.is_some() && host.target != ConnectTarget::Echo {
        runtime.spawn(run_checks(Arc::downgrade(cluster), Arc::downgrade(host)));
    }
}

async fn run_checks(cluster: Weak<Cluster>, host: Weak<UpstreamHost>) {
    let was_checked = host.upgrade().is_some_and(|host| host.was_checked);
    let mut record = CheckHistory { has_result: was_checked, ..CheckHistory::default() };
    loop {
        let interval = {
            let (Some(cluster), Some(host)) = (cluster.upgrade(), host.upgrade()) else { return };
            let Some(settings) = &cluster.settings().health_check else { return };
            let checked = tokio::time::timeout(settings.timeout, check(&cluster, &host, settings)).await;
            let checked = checked.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()));
            record.record_result(&cluster, &host, settings, checked);
            settings.interval
        };
        tokio::time::sleep(jittered(interval)).await;
    }
}

impl CheckHistory {
    /// Evaluates the result of a check. If the first one fails, the endpoint is unhealthy at once.
    fn record_result(
        &mut self,
        cluster: &Arc<Cluster>,
        host: &UpstreamHost,
        settings: &HealthCheck,
        checked: io::Result<()>,
    ) {
        let is_first = !std::mem::replace(&mut self.has_result, true);
        let upstream = &cluster.settings().name;
        match checked {
            Ok(()) => {
                self.failures = 0;
                self.successes = self.successes.saturating_add(1);
                if self.successes >= settings.healthy && host.clear_flag(FAILED_CHECK) {
                    cluster.bump_epoch();
                    tracing::info!(%upstream, endpoint = %host.name, "endpoint is healthy");
                }
            }
            Err(error) => {
                self.successes = 0;
                self.failures = self.failures.saturating_add(1);
                cluster.metrics.record_failed_health_check();
                if (is_first || self.failures >= settings.unhealthy) && host.set_flag(FAILED_CHECK) {
                    cluster.bump_epoch();
                    tracing::warn!(%upstream, endpoint = %host.name, %error, "endpoint is unhealthy");
                }
            }
        }
    }
}

/// Checks with the protocol of requests: an endpoint that supports HTTP/2 only would fail any other check.
async fn check(cluster: &Cluster, host: &UpstreamHost, settings: &HealthCheck) -> io::Result<()> {
    let protocol = if cluster.settings().http2 { AlpnProtocol::Http2 } else { AlpnProtocol::Http1 };
    let client = cluster.tls();
    let authority = settings.host.as_ref().unwrap_or(&host.hostname);
    let name = settings.host.as_ref().filter(|_| cluster.settings().server_name_from_host);
    let name = name.and_then(|name| server_names::name_of_host(name));
    let name = HandshakeName { name: name.as_deref(), ..HandshakeName::default() };
    let stream = connect::connect(cluster, host, client.as_deref(), name, protocol).await?;
    let Some(path) = &settings.path else { return Ok(()) };
    let status = match protocol {
        AlpnProtocol::Http1 => check_http1(stream, path, authority).await?,
        AlpnProtocol::Http2 => {
            let scheme = if client.is_some() { "https" } else { "http" };
            http2::check(stream, &format!("{scheme}://{authority}{path}"), USER_AGENT).await?
        }
    };
    let is_good = (200..400).contains(&status);
    if is_good { Ok(()) } else { Err(io::Error::other(format!("status code {status}"))) }
}

async fn check_http1(stream: Transport, path: &str, authority: &str) -> io::Result<u16> {
    let mut stream = pin!(stream);
    let request = format!(
        "GET {path} HTTP/1.1\r\nhost: {authority}\r\nuser-agent: {USER_AGENT}\r\nconnection: close\r\n\r\n"
    );
    stream.write_all(request.as_bytes()).await?;
    stream.flush().await?;
    let mut read = Vec::with_capacity(MAX_STATUS_LINE_LENGTH);
    loop {
        if let Some(status) = status_of(&read) {
            return Ok(status);
        }
        if read.len() >= MAX_STATUS_LINE_LENGTH || stream.read_buf(&mut read).await? == 0 {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "no status line"));
        }
    }
}

/// Returns the status code, once the whole line has arrived.
fn status_of(read: &[u8]) -> Option<u16> {
    let line = read.split(|byte| *byte == b'\n').next().filter(|line| line.len() < read.len())?;
    let rest = line.strip_prefix(b"HTTP/1.")?;
    std::str::from_utf8(rest.get(2..5)?).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn health_check_status_is_read_from_a_complete_status_line() {
        assert_eq!(status_of(b"HTTP/1.1 204 No Content\r\n"), Some(204));
        assert_eq!(status_of(b"HTTP/1.0 503\r\nx: y"), Some(503));
        for not_yet in [&b""[..], b"HTTP/1.1 204 No", b"SSH-2.0-x\r\n", b"HTTP/1.1 2\n", b"HTTP/2 200\n"] {
            assert_eq!(status_of(not_yet), None);
        }
    }
}
