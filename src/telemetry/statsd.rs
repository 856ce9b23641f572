//! Periodic export of counters to statsd over UDP: the increase since the last export.
//!
//! statsd sends no acknowledgements, so lost packets stay lost. A name that cannot be resolved is tried again with the
//! next export.

use std::collections::BTreeMap;
use std::io;
use std::net::{ToSocketAddrs as _, UdpSocket};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;

/// Maximum size of a packet, in bytes: one that most networks carry without fragmentation.
const PACKET: usize = 1_400;

/// Settings of the export.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Address of statsd, as `host:port`.
    pub address: Box<str>,
    /// Time between exports.
    pub interval: Duration,
    /// Tags, appended to every name as `.__NAME=VALUE`.
    pub tags: BTreeMap<String, String>,
}

/// Exports the result of `counters` periodically, and a last time when `end` receives a value or is closed. Blocks, so
/// it needs a thread of its own.
pub fn run(settings: &Settings, counters: impl Fn() -> BTreeMap<String, u64>, end: &Receiver<()>) {
    let mut sent = BTreeMap::new();
    let mut failed = false;
    loop {
        let is_last = !matches!(end.recv_timeout(settings.interval), Err(RecvTimeoutError::Timeout));
        let now = counters();
        let lines = lines(&sent, &now, &settings.tags);
        match send(&settings.address, &lines) {
            Ok(()) => (sent, failed) = (now, false),
            Err(error) => {
                if !failed {
                    tracing::warn!(address = %settings.address, %error, "cannot send to statsd");
                }
                failed = true;
            }
        }
        if is_last {
            return;
        }
    }
}

/// Returns a line for each counter that increased.
fn lines(
    before: &BTreeMap<String, u64>,
    now: &BTreeMap<String, u64>,
    tags: &BTreeMap<String, String>,
) -> Vec<String> {
    let tags: String = tags.iter().map(|(name, value)| format!(".__{name}={value}")).collect();
    let grown = |(name, count): (&String, &u64)| {
        let grown = count.saturating_sub(before.get(name).copied().unwrap_or(0));
        (grown > 0).then(|| format!("{name}{tags}:{grown}|c\n"))
    };
    now.iter().filter_map(grown).collect()
}

fn send(address: &str, lines: &[String]) -> io::Result<()> {
    if lines.is_empty() {
        return Ok(());
    }
    let nowhere = || io::Error::from(io::ErrorKind::AddrNotAvailable);
    let to = address.to_socket_addrs()?.next().ok_or_else(nowhere)?;
    let from = if to.is_ipv6() { "[::]:0" } else { "0.0.0.0:0" };
    let socket = UdpSocket::bind(from)?;
    let mut packet = String::new();
    for line in lines {
        if !packet.is_empty() && packet.len() + line.len() > PACKET {
            socket.send_to(packet.as_bytes(), to)?;
            packet.clear();
        }
        packet.push_str(line);
    }
    socket.send_to(packet.as_bytes(), to).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counters(pairs: &[(&str, u64)]) -> BTreeMap<String, u64> {
        pairs.iter().map(|(name, count)| ((*name).to_owned(), *count)).collect()
    }

    #[test]
    fn only_what_grew_is_sent_and_by_how_much() {
        let tags = BTreeMap::from([("zone".to_owned(), "a".to_owned())]);
        let lines =
            lines(&counters(&[("a", 2), ("b", 5)]), &counters(&[("a", 3), ("b", 5), ("c", 1)]), &tags);
        assert_eq!(lines, ["a.__zone=a:1|c\n", "c.__zone=a:1|c\n"]);
    }

    #[test]
    fn nothing_is_split_between_packets() {
        let listener = UdpSocket::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let lines: Vec<String> = (0..200).map(|index| format!("some.name.{index}:1|c\n")).collect();
        send(&address, &lines).unwrap();
        let mut received = String::new();
        while received.matches('\n').count() < lines.len() {
            let mut buffer = [0; 2000];
            let length = listener.recv(&mut buffer).unwrap();
            assert!(length <= PACKET && buffer[length - 1] == b'\n');
            received.push_str(std::str::from_utf8(&buffer[..length]).unwrap());
        }
        assert_eq!(received, lines.concat());
    }
}
