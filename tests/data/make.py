"""Writes the MaxMind databases in this directory, with invented places for the networks reserved for documentation.

Run it in an environment with mmdb_writer 0.2.7 and netaddr 1.3.0 (see README.md).
"""

from pathlib import Path
from unittest import mock

import mmdb_writer
from netaddr import IPSet

HERE = Path(__file__).parent
BUILT = 1_767_225_600  # 2026-01-01, so that the same script writes the same bytes


def place(country=None, continent=None, registered=None, **more):
    record = {}
    if continent:
        record["continent"] = {"code": continent, "geoname_id": 1, "names": {"en": continent}}
    if country:
        record["country"] = {"geoname_id": 2, "iso_code": country, "names": {"en": country}}
    if registered:
        record["registered_country"] = {"geoname_id": 3, "iso_code": registered, "names": {"en": registered}}
    return record | more


def city(name, **known):
    details = {
        "city": {"geoname_id": 4, "names": {"en": name}},
        "location": {"accuracy_radius": 20, "latitude": 1.5, "longitude": 2.5, "time_zone": "Etc/UTC"},
        "postal": {"code": "00000"},
        "subdivisions": [{"geoname_id": 5, "iso_code": "XX", "names": {"en": "Somewhere"}}],
    }
    return place(**known, **details)


def system(number):
    return {"autonomous_system_number": number, "autonomous_system_organization": f"Example {number}"}


def write(name, kind, records, version=6):
    writer = mmdb_writer.MMDBWriter(
        version, kind, ["en"], description="Invented, for tests", ipv4_compatible=version == 6, int_type="u32"
    )
    for network, record in records.items():
        writer.insert_network(IPSet([network]), record)
    with mock.patch.object(mmdb_writer.time, "time", lambda: BUILT):
        writer.to_db_file(str(HERE / name))


PLACES = {
    "192.0.2.0/25": place("DE", "EU", registered="US"),
    "192.0.2.128/25": place("FR", "EU"),
    "198.51.100.0/25": place("BR", "SA"),
    "198.51.100.128/26": place("IN", "AS"),
    # As for satellites and anycast: only the registered country is known, not the location.
    "198.51.100.192/26": place(registered="NO"),
    "203.0.113.0/25": place("US", "NA"),
    "203.0.113.128/26": place(continent="AN"),
    # 203.0.113.192/26 is in no database.
    "2001:db8:1::/48": place("DE", "EU"),
    "2001:db8:2::/48": place("BR", "SA"),
}

write("country.mmdb", "GeoLite2-Country", PLACES)
write("country-moved.mmdb", "GeoLite2-Country", PLACES | {"192.0.2.0/25": place("BR", "SA")})
write(
    "city.mmdb",
    "DBIP-City-Lite",
    {
        "192.0.2.0/25": city("Here", country="DE", continent="EU"),
        "198.51.100.0/25": city("There", country="BR", continent="SA"),
    },
)
write("ipv4.mmdb", "GeoLite2-Country", {"192.0.2.0/25": place("DE", "EU")}, version=4)
write("other.mmdb", "Example-Anonymous", {"192.0.2.0/25": {"is_anonymous": True, "country": "DE"}})

SYSTEMS = {"192.0.2.0/24": system(64500), "198.51.100.0/24": system(64501), "2001:db8::/32": system(64502)}

write("asn.mmdb", "GeoLite2-ASN", SYSTEMS)
write("asn-moved.mmdb", "GeoLite2-ASN", SYSTEMS | {"192.0.2.0/24": system(64503)})

# Other vendors use other number types, text, other names, or one more level.
write(
    "asn-others.mmdb",
    "Example-ASN",
    {
        "192.0.2.0/26": {"asn": "AS64500", "name": "Example"},
        "192.0.2.64/26": {"autonomous_system_number": "64501"},
        "192.0.2.128/26": {"asn": mmdb_writer.MmdbU16(64502)},
        "192.0.2.192/26": {"autonomous_system_number": mmdb_writer.MmdbU64(64503)},
        "198.51.100.0/26": {"as_number": mmdb_writer.MmdbI32(64504)},
        "198.51.100.64/26": {"asn": {"name": "Example", "asn": "as64505"}},
        "198.51.100.128/26": {"traits": {"autonomous_system_number": 64506}},
        "198.51.100.192/26": {"asn": "AS64507 Example"},
        "203.0.113.0/26": {"asn": mmdb_writer.MmdbU128(64508)},
        "203.0.113.64/26": {"asn": mmdb_writer.MmdbF64(64509.0)},
        # Not the number of an autonomous system.
        "203.0.113.128/26": {"asn": "unknown"},
        "203.0.113.192/26": {"asn": mmdb_writer.MmdbU64(1 << 32), "as_number": mmdb_writer.MmdbI32(-1)},
    },
)
write("asn-unreadable.mmdb", "Example-ASN", {"192.0.2.0/24": {"asn": "Example Ltd", "route": "192.0.2.0/24"}})
