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
const MAX_PACKET_SIZE: usize = 1_400;

/// Settings of the export.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StatsdSettings {
    /// Address of statsd, as `host:port`.
    pub address: Box<str>,
    /// Time between exports.
    pub interval: Duration,
    /// Tags, appended to every name as `.__NAME=VALUE`.
    pub tags: BTreeMap<String, String>,
}

/// Exports the result of `counters` periodically, and a last time when `shutdown` receives a value or is
/// closed. Blocks, so it needs a thread of its own.
pub fn run(settings: &StatsdSettings, counters: impl Fn() -> BTreeMap<String, u64>, shutdown: &Receiver<()>) {
    let mut sent = BTreeMap::new();
    let mut has_failed = false;
    loop {
        let is_last = !matches!(shutdown.recv_timeout(settings.interval), Err(RecvTimeoutError::Timeout));
        let current = counters();
        let lines = counter_lines(&sent, &current, &settings.tags);
        match send(&settings.address, &lines) {
            Ok(()) => (sent, has_failed) = (current, false),
            Err(error) => {
                if !has_failed {
                    tracing::warn!(address = %settings.address, %error, "cannot send to statsd");
                }
                has_failed = true;
            }
        }
        if is_last {
            return;
        }
    }
}

/// Returns a line for each counter that increased.
fn counter_lines(
    previous: &BTreeMap<String, u64>,
    current: &BTreeMap<String, u64>,
    tags: &BTreeMap<String, String>,
) -> Vec<String> {
    let tags: String = tags.iter().map(|(name, value)| format!(".__{name}={value}")).collect();
    let line = |(name, count): (&String, &u64)| {
        let increase = count.saturating_sub(previous.get(name).copied().unwrap_or(0));
        (increase > 0).then(|| format!("{name}{tags}:{increase}|c\n"))
    };
    current.iter().filter_map(line).collect()
}

fn send(address: &str, lines: &[String]) -> io::Result<()> {
    if lines.is_empty() {
        return Ok(());
    }
    let no_address = || io::Error::from(io::ErrorKind::AddrNotAvailable);
    let to = address.to_socket_addrs()?.next().ok_or_else(no_address)?;
    let from = if to.is_ipv6() { "[::]:0" } else { "0.0.0.0:0" };
    let socket = UdpSocket::bind(from)?;
    let mut packet = String::new();
    for line in lines {
        if !packet.is_empty() && packet.len() + line.len() > MAX_PACKET_SIZE {
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
    fn statsd_sends_only_the_increase_of_counters() {
        let tags = BTreeMap::from([("zone".to_owned(), "a".to_owned())]);
        let lines = counter_lines(
            &counters(&[("a", 2), ("b", 5)]),
            &counters(&[("a", 3), ("b", 5), ("c", 1)]),
            &tags,
        );
        assert_eq!(lines, ["a.__zone=a:1|c\n", "c.__zone=a:1|c\n"]);
    }

    #[test]
    fn statsd_splits_no_line_between_packets() {
        let listener = UdpSocket::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let lines: Vec<String> = (0..200).map(|index| format!("some.name.{index}:1|c\n")).collect();
        send(&address, &lines).unwrap();
        let mut received = String::new();
        while received.matches('\n').count() < lines.len() {
            let mut buffer = [0; 2000];
            let length = listener.recv(&mut buffer).unwrap();
            assert!(length <= MAX_PACKET_SIZE && buffer[length - 1] == b'\n');
            received.push_str(std::str::from_utf8(&buffer[..length]).unwrap());
        }
        assert_eq!(received, lines.concat());
    }
}
