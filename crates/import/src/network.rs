//! IP networks.

use std::net::IpAddr;

/// Reads an address or a network, and clears the bits behind its prefix.
pub(super) fn parse_network(text: &str) -> Option<(IpAddr, u8)> {
    let (address, length) = text.split_once('/').map_or((text, None), |(one, other)| (one, Some(other)));
    let address: IpAddr = address.parse().ok()?;
    let bits = if address.is_ipv4() { 32 } else { 128 };
    let length = length.map_or(Some(bits), |length| length.parse().ok()).filter(|length| *length <= bits)?;
    Some((network_of(address, length), length))
}

/// Returns the first address of the network with this prefix length.
pub(super) fn network_of(address: IpAddr, length: u8) -> IpAddr {
    let shift = |bits: u32| bits.saturating_sub(u32::from(length));
    match address {
        IpAddr::V4(v4) => {
            let mask = u32::MAX.checked_shl(shift(32)).unwrap_or(0);
            IpAddr::V4((v4.to_bits() & mask).into())
        }
        IpAddr::V6(v6) => {
            let mask = u128::MAX.checked_shl(shift(128)).unwrap_or(0);
            IpAddr::V6((v6.to_bits() & mask).into())
        }
    }
}
