//! Periodic export of counters to statsd: the increase since the last export.
//!
//! statsd sends no acknowledgements, so lost packets stay lost. If the server cannot be reached, everything is sent with
//! the next export. Over TCP, a part may then be sent twice.

use std::collections::BTreeMap;
use std::io::{self, Write as _};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs as _, UdpSocket};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;

#[cfg(feature = "schema")]
use schemars::JsonSchema;
use serde::Deserialize;

use weir_net::outage::Outage;

/// Maximum size of a packet, in bytes: one that most networks carry without fragmentation.
const MAX_PACKET_SIZE: usize = 1_400;
/// Maximum time to connect, and to write.
const TCP_TIMEOUT: Duration = Duration::from_secs(2);

/// Settings of the export.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StatsdSettings {
    /// Address of statsd, as `host:port`.
    pub address: Box<str>,
    /// Protocol of the server.
    pub protocol: StatsdProtocol,
    /// Time between exports.
    pub interval: Duration,
    /// Tags of every name.
    pub tags: BTreeMap<String, String>,
}

/// Protocol of a statsd server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[cfg_attr(feature = "schema", derive(JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum StatsdProtocol {
    /// Packets with lines.
    #[default]
    Udp,
    /// A connection with lines.
    Tcp,
    /// Packets with lines whose tags are as DogStatsD reads them.
    Dogstatsd,
}

/// Exports the result of `counters` periodically, and a last time when `shutdown` receives a value or is
/// closed. Blocks, so it needs a thread of its own.
pub fn run(settings: &StatsdSettings, counters: impl Fn() -> BTreeMap<String, u64>, shutdown: &Receiver<()>) {
    let mut sent = BTreeMap::new();
    let mut sender = StatsdSender::default();
    let outage = Outage::default();
    loop {
        let is_last = !matches!(shutdown.recv_timeout(settings.interval), Err(RecvTimeoutError::Timeout));
        let current = counters();
        let lines = counter_lines(&sent, &current, settings);
        match sender.send(settings, &lines) {
            Ok(()) => {
                sent = current;
                if outage.record_success() > 0 {
                    tracing::info!(address = %settings.address, "counters are sent to statsd again");
                }
            }
            Err(error) if outage.record_failure() == 1 => {
                let protocol = settings.protocol;
                tracing::warn!(address = %settings.address, ?protocol, %error, "cannot send to statsd");
            }
            Err(_) => {}
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
    settings: &StatsdSettings,
) -> Vec<String> {
    let pairs = settings.tags.iter();
    let (name_tags, line_tags) = match settings.protocol {
        StatsdProtocol::Dogstatsd if settings.tags.is_empty() => (String::new(), String::new()),
        StatsdProtocol::Dogstatsd => {
            let tags: Vec<_> = pairs.map(|(name, value)| format!("{name}:{value}")).collect();
            (String::new(), format!("|#{}", tags.join(",")))
        }
        StatsdProtocol::Udp | StatsdProtocol::Tcp => {
            (pairs.map(|(name, value)| format!(".__{name}={value}")).collect(), String::new())
        }
    };
    let line = |(name, count): (&String, &u64)| {
        let increase = count.saturating_sub(previous.get(name).copied().unwrap_or(0));
        (increase > 0).then(|| format!("{name}{name_tags}:{increase}|c{line_tags}\n"))
    };
    current.iter().filter_map(line).collect()
}

/// Sends lines, over one connection if the protocol has connections.
#[derive(Debug, Default)]
struct StatsdSender {
    connection: Option<TcpStream>,
}

impl StatsdSender {
    fn send(&mut self, settings: &StatsdSettings, lines: &[String]) -> io::Result<()> {
        if lines.is_empty() {
            return Ok(());
        }
        match settings.protocol {
            StatsdProtocol::Udp | StatsdProtocol::Dogstatsd => {
                send_packets(resolve(&settings.address)?, lines)
            }
            StatsdProtocol::Tcp => self.send_on_connection(&settings.address, lines),
        }
    }

    fn send_on_connection(&mut self, address: &str, lines: &[String]) -> io::Result<()> {
        // A server that has closed the connection is found out with the second write to it.
        let mut connection = match self.connection.take().filter(is_open) {
            Some(connection) => connection,
            None => {
                let connection = TcpStream::connect_timeout(&resolve(address)?, TCP_TIMEOUT)?;
                connection.set_write_timeout(Some(TCP_TIMEOUT))?;
                connection
            }
        };
        connection.write_all(lines.concat().as_bytes())?;
        self.connection = Some(connection);
        Ok(())
    }
}

/// Whether the server has not closed the connection. It never sends anything.
fn is_open(connection: &TcpStream) -> bool {
    let would_block =
        |peeked: io::Result<usize>| peeked.is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock);
    connection.set_nonblocking(true).is_ok()
        && would_block(connection.peek(&mut [0]))
        && connection.set_nonblocking(false).is_ok()
}

fn resolve(address: &str) -> io::Result<SocketAddr> {
    let no_address = || io::Error::from(io::ErrorKind::AddrNotAvailable);
    address.to_socket_addrs()?.next().ok_or_else(no_address)
}

fn send_packets(to: SocketAddr, lines: &[String]) -> io::Result<()> {
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

    fn settings(protocol: StatsdProtocol, address: &str) -> StatsdSettings {
        let tags = BTreeMap::from([("zone".to_owned(), "a".to_owned())]);
        StatsdSettings { address: address.into(), protocol, interval: Duration::from_secs(1), tags }
    }

    #[test]
    fn statsd_over_tcp_connects_again_after_the_server_has_closed() {
        use std::io::{BufRead as _, BufReader};
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let settings = settings(StatsdProtocol::Tcp, &listener.local_addr().unwrap().to_string());
        let mut sender = StatsdSender::default();
        let read = |stream: &TcpStream| {
            let mut line = String::new();
            BufReader::new(stream).read_line(&mut line).unwrap();
            line
        };
        sender.send(&settings, &["a:1|c\n".to_owned()]).unwrap();
        let (first, _) = listener.accept().unwrap();
        assert_eq!(read(&first), "a:1|c\n");
        sender.send(&settings, &["a:2|c\n".to_owned()]).unwrap();
        assert_eq!(read(&first), "a:2|c\n", "the same connection");
        drop(first);
        while sender.connection.as_ref().is_some_and(is_open) {
            std::thread::yield_now();
        }
        sender.send(&settings, &["a:3|c\n".to_owned()]).unwrap();
        let (second, _) = listener.accept().unwrap();
        assert_eq!(read(&second), "a:3|c\n");
    }

    #[test]
    fn statsd_sends_only_the_increase_of_counters() {
        let lines = |protocol| {
            counter_lines(
                &counters(&[("a", 2), ("b", 5)]),
                &counters(&[("a", 3), ("b", 5), ("c", 1)]),
                &settings(protocol, ""),
            )
        };
        for protocol in [StatsdProtocol::Udp, StatsdProtocol::Tcp] {
            assert_eq!(lines(protocol), ["a.__zone=a:1|c\n", "c.__zone=a:1|c\n"]);
        }
        assert_eq!(lines(StatsdProtocol::Dogstatsd), ["a:1|c|#zone:a\n", "c:1|c|#zone:a\n"]);
    }

    #[test]
    fn statsd_splits_no_line_between_packets() {
        let listener = UdpSocket::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let lines: Vec<String> = (0..200).map(|index| format!("some.name.{index}:1|c\n")).collect();
        send_packets(resolve(&address).unwrap(), &lines).unwrap();
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
