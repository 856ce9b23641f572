//! Addresses and networks of clients.

use std::net::IpAddr;

use ipnet::IpNet;

use crate::diagnostic::ValueError;
use crate::quoting::quoted;

/// Parses a network, e.g. `10.0.0.0/8`, or an address, which is a network of one address.
///
/// # Errors
/// Returns a [`ValueError`] that names the part that cannot be read, or reports host bits that are set.
pub fn network(text: &str) -> Result<IpNet, ValueError> {
    let (address, prefix) = match text.split_once('/') {
        Some((address, prefix)) => (address, Some(prefix)),
        None => (text, None),
    };
    let Ok(address) = address.parse::<IpAddr>() else {
        return Err(ValueError::new(format!(
            "expected a network such as `10.0.0.0/8`, got {}",
            quoted(text)
        )));
    };
    let max_length = if address.is_ipv4() { 32 } else { 128 };
    let length = match prefix.map(str::parse::<u8>) {
        None => max_length,
        Some(Ok(length)) if length <= max_length => length,
        Some(_) => {
            let prefix = quoted(prefix.unwrap_or_default());
            return Err(ValueError::new(format!(
                "expected a prefix length from 0 to {max_length}, got {prefix}"
            )));
        }
    };
    let network = IpNet::new_assert(address, length);
    if network.trunc() != network {
        let message = format!("host bits must be zero, got {}", quoted(text));
        return Err(ValueError::new(message).with_hint(format!("did you mean `{}`?", network.trunc())));
    }
    Ok(network)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn network_error(text: &str) -> ValueError {
        network(text).unwrap_err()
    }

    #[test]
    fn address_alone_is_a_network_of_one_address() {
        assert_eq!(network("192.0.2.7").unwrap().to_string(), "192.0.2.7/32");
        assert_eq!(network("2001:db8::1").unwrap().to_string(), "2001:db8::1/128");
        assert_eq!(network("0.0.0.0/0").unwrap().to_string(), "0.0.0.0/0");
    }

    #[test]
    fn invalid_networks_are_rejected_with_hint() {
        assert_eq!(network_error("10.1.2.3/8").hint.unwrap(), "did you mean `10.0.0.0/8`?");
        assert_eq!(network_error("10.0.0.0/33").message, "expected a prefix length from 0 to 32, got \"33\"");
        assert_eq!(network_error("::/129").message, "expected a prefix length from 0 to 128, got \"129\"");
        for bad in
            ["", "/", "10.0.0.0/", "10.0.0.0/-1", "10.0.0.0/8/8", "example.com", "10.0.0", "fe80::1%eth0"]
        {
            assert!(network(bad).is_err(), "{bad}");
        }
    }
}
