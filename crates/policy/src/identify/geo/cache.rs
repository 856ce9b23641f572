//! Cache of locations by client address.
//!
//! A look-up in a database takes 0.5 to 1 µs, one in this cache some nanoseconds. Clients that send many requests, and
//! those that are rejected again and again, are found in it. It has a fixed size: an address has one place, and replaces
//! the address that had it before. So a client that varies its address costs what it would cost without the cache.

use std::cell::Cell;
use std::hash::BuildHasher as _;
use std::net::IpAddr;

use foldhash::fast::FixedState;

use super::{GeoLocation, LocationDatabase};

/// Number of places, 24 bytes each; a power of two.
const PLACES: usize = 1024;

/// Locations of the clients of one thread, all from the same database.
#[derive(Debug)]
pub struct LocationCache {
    places: Box<[Cell<Option<CachedLocation>>]>,
    hasher: FixedState,
}

#[derive(Clone, Copy, Debug)]
struct CachedLocation {
    ip: IpAddr,
    location: GeoLocation,
}

impl Default for LocationCache {
    fn default() -> Self {
        Self { places: vec![Cell::new(None); PLACES].into(), hasher: FixedState::default() }
    }
}

impl LocationCache {
    /// Returns the location of `ip`, from `database` if it is not in the cache.
    pub fn find(&self, ip: IpAddr, database: &LocationDatabase) -> GeoLocation {
        self.find_or_insert(ip, || database.find(ip))
    }

    fn find_or_insert(&self, ip: IpAddr, locate: impl FnOnce() -> GeoLocation) -> GeoLocation {
        let position = self.hasher.hash_one(ip) as usize % PLACES;
        let Some(place) = self.places.get(position) else { return locate() };
        match place.get() {
            Some(cached) if cached.ip == ip => cached.location,
            Some(_) | None => {
                let location = locate();
                place.set(Some(CachedLocation { ip, location }));
                location
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    fn location(ip: IpAddr) -> GeoLocation {
        let code = if ip.is_ipv6() { "FR" } else { "DE" };
        GeoLocation { country: code.parse().ok(), continent: None }
    }

    #[test]
    fn address_is_looked_up_once() {
        let cache = LocationCache::default();
        let addresses = ["192.0.2.1", "2001:db8::1"].map(|ip| ip.parse::<IpAddr>().unwrap());
        for ip in addresses {
            assert_eq!(cache.find_or_insert(ip, || location(ip)), location(ip));
            assert_eq!(cache.find_or_insert(ip, || panic!("looked up again")), location(ip));
        }
    }

    #[test]
    fn addresses_with_the_same_place_do_not_get_each_others_location() {
        let cache = LocationCache::default();
        for number in 0..4 * PLACES as u32 {
            let four = IpAddr::V4(Ipv4Addr::from(number));
            let six = IpAddr::V6(Ipv4Addr::from(number).to_ipv6_mapped());
            for ip in [four, six, four] {
                assert_eq!(cache.find_or_insert(ip, || location(ip)), location(ip));
            }
        }
    }
}
