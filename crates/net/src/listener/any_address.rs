//! `[::]`, the address of all interfaces for IPv4 and IPv6, on every system.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};

use rustix::io::Errno;
use socket2::{Domain, Socket as RawSocket, Type};

/// Whether an address is `[::]`.
pub(super) fn is_any(address: SocketAddr) -> bool {
    address.is_ipv6() && address.ip().is_unspecified()
}

/// Returns the address to bind: `0.0.0.0` in place of `[::]` if the system has no IPv6, as with `ipv6.disable=1`. So one
/// configuration fits clusters with IPv4, with IPv6 and with both.
pub(super) fn supported(address: SocketAddr) -> SocketAddr {
    supported_by(address, || RawSocket::new(Domain::IPV6, Type::STREAM, None).map(drop))
}

fn supported_by(address: SocketAddr, open: impl FnOnce() -> io::Result<()>) -> SocketAddr {
    if !is_any(address) {
        return address;
    }
    match open() {
        Err(error) if error.raw_os_error() == Some(Errno::AFNOSUPPORT.raw_os_error()) => {
            let ipv4 = SocketAddr::from((Ipv4Addr::UNSPECIFIED, address.port()));
            tracing::info!(%address, instead = %ipv4, "the system has no IPv6");
            ipv4
        }
        // Whatever else is wrong, the bind reports it.
        Ok(()) | Err(_) => address,
    }
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv6Addr, TcpStream};

    use super::super::socket::bind_tcp_beside;
    use super::*;

    fn without_ipv6() -> io::Result<()> {
        Err(Errno::AFNOSUPPORT.into())
    }

    #[test]
    fn any_address_is_that_of_ipv4_without_ipv6() {
        let any = SocketAddr::from(([0_u16; 8], 8080));
        assert_eq!(supported_by(any, without_ipv6), SocketAddr::from(([0, 0, 0, 0], 8080)));
        assert_eq!(supported_by(any, || Ok(())), any);
        assert_eq!(supported_by(any, || Err(Errno::MFILE.into())), any, "other errors are reported");
    }

    #[test]
    fn other_addresses_of_ipv6_have_no_substitute() {
        for address in ["[::1]:80", "[2001:db8::1]:80", "127.0.0.1:80", "0.0.0.0:80"] {
            let address: SocketAddr = address.parse().unwrap();
            assert_eq!(supported_by(address, without_ipv6), address);
        }
    }

    #[test]
    fn any_address_accepts_connections_over_ipv4_and_ipv6() {
        let any = SocketAddr::from(([0_u16; 8], 0));
        let listener = bind_tcp_beside(any, 1, &[]).unwrap().remove(0);
        listener.set_nonblocking(false).unwrap();
        let bound = listener.local_addr().unwrap();
        let loopbacks = [IpAddr::V4(Ipv4Addr::LOCALHOST), IpAddr::V6(Ipv6Addr::LOCALHOST)];
        for address in loopbacks.into_iter().filter(|address| bound.is_ipv6() || address.is_ipv4()) {
            let client = TcpStream::connect((address, bound.port())).unwrap();
            assert_eq!(listener.accept().unwrap().1.port(), client.local_addr().unwrap().port());
        }
    }
}
