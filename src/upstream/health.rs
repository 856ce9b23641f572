//! Asks an endpoint whether it is well, beside requests and once per process.

use std::io;
use std::pin::pin;
use std::sync::{Arc, Weak};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::runtime::Handle;

use super::cluster::Cluster;
use super::connect;
use super::host::{FAILED_CHECK, Host, Target};
use super::http2;
use super::settings::HealthCheck;
use crate::jitter::jittered;
use crate::tls::Protocol;
use crate::transport::Transport;

/// A status line is here long before so many bytes are.
const LONGEST_LINE: usize = 1024;
/// Who asks.
const USER_AGENT: &str = "weir-health-check";

/// How checks of one endpoint went.
#[derive(Debug, Default)]
struct Record {
    /// Whether there was one.
    any: bool,
    good: u32,
    bad: u32,
}

/// Checks `host` every now and then on `runtime`, if that is configured, for as long as it is an endpoint of `cluster`.
pub(super) fn start(cluster: &Arc<Cluster>, host: &Arc<Host>, runtime: &Handle) {
    if cluster.settings().health_check.is_some() && host.target != Target::Echo {
        runtime.spawn(keep_checked(Arc::downgrade(cluster), Arc::downgrade(host)));
    }
}

async fn keep_checked(cluster: Weak<Cluster>, host: Weak<Host>) {
    let was_checked = host.upgrade().is_some_and(|host| host.was_checked);
    let mut record = Record { any: was_checked, ..Record::default() };
    loop {
        let interval = {
            let (Some(cluster), Some(host)) = (cluster.upgrade(), host.upgrade()) else { return };
            let Some(settings) = &cluster.settings().health_check else { return };
            let checked = tokio::time::timeout(settings.timeout, check(&cluster, &host, settings)).await;
            let checked = checked.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()));
            record.note(&cluster, &host, settings, checked);
            settings.interval
        };
        tokio::time::sleep(jittered(interval)).await;
    }
}

impl Record {
    /// The first check decides at once: nobody knows better.
    fn note(&mut self, cluster: &Arc<Cluster>, host: &Host, settings: &HealthCheck, checked: io::Result<()>) {
        let is_first = !std::mem::replace(&mut self.any, true);
        let upstream = &cluster.settings().name;
        match checked {
            Ok(()) => {
                self.bad = 0;
                self.good = self.good.saturating_add(1);
                if self.good >= settings.healthy && host.lower(FAILED_CHECK) {
                    cluster.has_changed();
                    tracing::info!(%upstream, endpoint = %host.name, "endpoint is healthy");
                }
            }
            Err(error) => {
                self.good = 0;
                self.bad = self.bad.saturating_add(1);
                cluster.metrics.check_failed();
                if (is_first || self.bad >= settings.unhealthy) && host.raise(FAILED_CHECK) {
                    cluster.has_changed();
                    tracing::warn!(%upstream, endpoint = %host.name, %error, "endpoint is not healthy");
                }
            }
        }
    }
}

/// Asks as requests do: one that speaks nothing but HTTP/2 would fail any other question.
async fn check(cluster: &Cluster, host: &Host, settings: &HealthCheck) -> io::Result<()> {
    let protocol = if cluster.settings().http2 { Protocol::Http2 } else { Protocol::Http1 };
    let client = cluster.tls();
    let stream = connect::connect(cluster, host, client.as_deref(), protocol).await?;
    let Some(path) = &settings.path else { return Ok(()) };
    let authority = settings.host.as_ref().unwrap_or(&host.hostname);
    let status = match protocol {
        Protocol::Http1 => ask_http1(stream, path, authority).await?,
        Protocol::Http2 => {
            let scheme = if client.is_some() { "https" } else { "http" };
            http2::check(stream, &format!("{scheme}://{authority}{path}"), USER_AGENT).await?
        }
    };
    let is_good = (200..400).contains(&status);
    if is_good { Ok(()) } else { Err(io::Error::other(format!("answered {status}"))) }
}

async fn ask_http1(stream: Transport, path: &str, authority: &str) -> io::Result<u16> {
    let mut stream = pin!(stream);
    let request = format!(
        "GET {path} HTTP/1.1\r\nhost: {authority}\r\nuser-agent: {USER_AGENT}\r\nconnection: close\r\n\r\n"
    );
    stream.write_all(request.as_bytes()).await?;
    stream.flush().await?;
    let mut read = Vec::with_capacity(LONGEST_LINE);
    loop {
        if let Some(status) = status_of(&read) {
            return Ok(status);
        }
        if read.len() >= LONGEST_LINE || stream.read_buf(&mut read).await? == 0 {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "no status line"));
        }
    }
}

/// The status, once the whole line is here.
fn status_of(read: &[u8]) -> Option<u16> {
    let line = read.split(|byte| *byte == b'\n').next().filter(|line| line.len() < read.len())?;
    let rest = line.strip_prefix(b"HTTP/1.")?;
    std::str::from_utf8(rest.get(2..5)?).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_is_read_once_its_line_is_whole() {
        assert_eq!(status_of(b"HTTP/1.1 204 No Content\r\n"), Some(204));
        assert_eq!(status_of(b"HTTP/1.0 503\r\nx: y"), Some(503));
        for not_yet in [&b""[..], b"HTTP/1.1 204 No", b"SSH-2.0-x\r\n", b"HTTP/1.1 2\n", b"HTTP/2 200\n"] {
            assert_eq!(status_of(not_yet), None);
        }
    }
}
