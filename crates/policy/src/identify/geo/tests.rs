use std::fs;
use std::path::Path;

use super::*;

fn file(name: &str) -> Vec<u8> {
    fs::read(Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")).join("tests/data").join(name)).unwrap()
}

fn open_locations(name: &str) -> LocationDatabase {
    LocationDatabase::open(file(name)).unwrap()
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

/// Returns `country/continent`, with a dash for an unknown one.
fn location_text(places: &LocationDatabase, address: &str) -> String {
    let GeoLocation { country, continent } = places.find(ip(address));
    let country = country.map_or_else(|| "-".to_owned(), |country| country.to_string());
    format!("{country}/{}", continent.map_or("-", Continent::code))
}

#[test]
fn country_database_locates_addresses() {
    let places = open_locations("country.mmdb");
    for (address, expected) in [
        ("192.0.2.0", "DE/EU"),
        ("192.0.2.127", "DE/EU"),
        ("192.0.2.128", "FR/EU"),
        ("198.51.100.7", "BR/SA"),
        ("203.0.113.1", "US/NA"),
        ("2001:db8:1::1", "DE/EU"),
        ("2001:db8:2:ffff::", "BR/SA"),
    ] {
        assert_eq!(location_text(&places, address), expected, "{address}");
    }
}

#[test]
fn geo_lookup_falls_back_to_the_registered_country() {
    let places = open_locations("country.mmdb");
    assert_eq!(location_text(&places, "198.51.100.200"), "NO/-");
    assert_eq!(location_text(&places, "203.0.113.130"), "-/AN");
    for nowhere in ["203.0.113.200", "127.0.0.1", "2001:db8:3::1", "::1"] {
        assert_eq!(location_text(&places, nowhere), "-/-", "{nowhere}");
    }
}

#[test]
fn city_database_locates_countries() {
    assert_eq!(location_text(&open_locations("city.mmdb"), "192.0.2.1"), "DE/EU");
    assert_eq!(location_text(&open_locations("city.mmdb"), "198.51.100.1"), "BR/SA");
}

#[test]
fn ipv4_database_has_no_location_for_ipv6() {
    let places = open_locations("ipv4.mmdb");
    assert_eq!(
        (&*location_text(&places, "192.0.2.1"), &*location_text(&places, "2001:db8:1::1")),
        ("DE/EU", "-/-")
    );
}

#[test]
fn asn_database_finds_autonomous_systems() {
    let systems = AsnDatabase::open(file("asn.mmdb")).unwrap();
    assert_eq!(systems.find(ip("192.0.2.255")), Some(Asn(64500)));
    assert_eq!(systems.find(ip("2001:db8:9::")), Some(Asn(64502)));
    assert_eq!(systems.find(ip("203.0.113.1")), None);
}

#[test]
fn asn_is_read_from_any_number_type_and_text() {
    let systems = AsnDatabase::open(file("asn-others.mmdb")).unwrap();
    for (address, number) in [
        ("192.0.2.1", 64500),
        ("192.0.2.65", 64501),
        ("192.0.2.129", 64502),
        ("192.0.2.193", 64503),
        ("198.51.100.1", 64504),
        ("198.51.100.65", 64505),
        ("198.51.100.129", 64506),
        ("198.51.100.193", 64507),
        ("203.0.113.1", 64508),
        ("203.0.113.65", 64509),
    ] {
        assert_eq!(systems.find(ip(address)), Some(Asn(number)), "{address}");
    }
    for unknown in ["203.0.113.129", "203.0.113.193"] {
        assert_eq!(systems.find(ip(unknown)), None, "{unknown}");
    }
}

#[test]
fn asn_database_with_unreadable_numbers_reports_its_first_record() {
    let DatabaseError::Other { has: None, record: Some(record), .. } =
        AsnDatabase::open(file("asn-unreadable.mmdb")).unwrap_err()
    else {
        panic!("expected an error with an unreadable record")
    };
    assert_eq!(record, "192.0.2.0/24: {\"asn\":\"Example Ltd\",\"route\":\"192.0.2.0/24\"}");
}

#[test]
fn database_of_another_kind_is_rejected_with_its_contents() {
    let other = |required, kind: &str, has, record: &str| {
        let record = Some(record.to_owned());
        DatabaseError::Other { required, kind: kind.to_owned(), has, record }
    };
    assert_eq!(
        LocationDatabase::open(file("asn.mmdb")).unwrap_err(),
        other(
            DatabaseContent::Locations,
            "GeoLite2-ASN",
            Some(DatabaseContent::AutonomousSystems),
            "192.0.2.0/24: {\"autonomous_system_number\":64500,\"autonomous_system_organization\":\"Example 64500\"}"
        )
    );
    assert!(matches!(
        AsnDatabase::open(file("country.mmdb")).unwrap_err(),
        DatabaseError::Other {
            required: DatabaseContent::AutonomousSystems,
            has: Some(DatabaseContent::Locations),
            ..
        }
    ));
    // It has a field `country` with another meaning.
    assert_eq!(
        LocationDatabase::open(file("other.mmdb")).unwrap_err(),
        other(
            DatabaseContent::Locations,
            "Example-Anonymous",
            None,
            "192.0.2.0/25: {\"is_anonymous\":true,\"country\":\"DE\"}"
        )
    );
}

#[test]
fn truncated_geo_database_is_rejected() {
    let whole = file("country.mmdb");
    for length in 0..whole.len() {
        assert!(LocationDatabase::open(whole[..length].to_vec()).is_err(), "truncated at {length}");
        assert!(LocationDatabase::open(whole[whole.len() - length..].to_vec()).is_err(), "the last {length}");
    }
    assert_eq!(LocationDatabase::open(b"# no database".to_vec()).unwrap_err(), DatabaseError::Foreign);
    assert_eq!(
        LocationDatabase::open(whole[..whole.len() / 2].to_vec()).unwrap_err(),
        DatabaseError::Foreign
    );
}

#[test]
fn corrupted_geo_database_never_panics_or_hangs() {
    let whole = file("country.mmdb");
    let mut rejected = 0;
    for at in 0..whole.len() {
        for byte in [0x00, 0x20, 0x7f, 0xff] {
            let mut damaged = whole.clone();
            damaged[at] = byte;
            match LocationDatabase::open(damaged) {
                Ok(places) => {
                    drop(["192.0.2.1", "203.0.113.1", "2001:db8:1::1"].map(|a| location_text(&places, a)))
                }
                Err(_) => rejected += 1,
            }
        }
    }
    assert!(rejected > whole.len() / 10, "{rejected} of {}", whole.len() * 4);
}

#[test]
fn geo_lookup_is_cached_per_request() {
    let geo =
        GeoDatabases { locations: Some(Arc::new(open_locations("country.mmdb"))), autonomous_systems: None };
    let lookup = GeoLookup::new(&geo);
    let first = lookup.location(ip("192.0.2.1"));
    // A second look-up would have another result.
    assert_eq!(lookup.location(ip("198.51.100.7")), first);
    assert_eq!(lookup.autonomous_system(ip("192.0.2.1")), None);
}
