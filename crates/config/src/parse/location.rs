//! Countries, continents and autonomous systems.

use crate::diagnostic::ValueError;
use crate::quoting::quoted;
use weir_policy::identify::geo::{Asn, Continent, Country};

/// ISO 3166-1 alpha-2 codes, as of 2026.
const COUNTRIES: &str = "AD AE AF AG AI AL AM AO AQ AR AS AT AU AW AX AZ BA BB BD BE BF BG BH BI BJ BL BM BN BO BQ BR \
    BS BT BV BW BY BZ CA CC CD CF CG CH CI CK CL CM CN CO CR CU CV CW CX CY CZ DE DJ DK DM DO DZ EC EE EG EH ER ES ET \
    FI FJ FK FM FO FR GA GB GD GE GF GG GH GI GL GM GN GP GQ GR GS GT GU GW GY HK HM HN HR HT HU ID IE IL IM IN IO IQ \
    IR IS IT JE JM JO JP KE KG KH KI KM KN KP KR KW KY KZ LA LB LC LI LK LR LS LT LU LV LY MA MC MD ME MF MG MH MK ML \
    MM MN MO MP MQ MR MS MT MU MV MW MX MY MZ NA NC NE NF NG NI NL NO NP NR NU NZ OM PA PE PF PG PH PK PL PM PN PR PS \
    PT PW PY QA RE RO RS RU RW SA SB SC SD SE SG SH SI SJ SK SL SM SN SO SR SS ST SV SX SY SZ TC TD TF TG TH TJ TK TL \
    TM TN TO TR TT TV TW TZ UA UG UM US UY UZ VA VC VE VG VI VN VU WF WS YE YT ZA ZM ZW";

/// Parses a country code, e.g. `DE`, case-insensitively.
///
/// # Errors
/// Returns a [`ValueError`] if it is not a code of two letters, or not assigned to a country.
pub fn country(text: &str) -> Result<Country, ValueError> {
    let Ok(country) = text.parse::<Country>() else {
        return Err(ValueError::new(format!("expected a country code such as `DE`, got {}", quoted(text)))
            .with_hint("two letters, as in ISO 3166"));
    };
    let code = country.to_string();
    if COUNTRIES.split(' ').any(|known| known == code) || is_private_use(country) {
        return Ok(country);
    }
    let error = ValueError::new(format!("unknown country code {}", quoted(text)));
    Err(match code.as_str() {
        "UK" => error.with_hint("did you mean `GB`?"),
        "EL" => error.with_hint("did you mean `GR`?"),
        "EU" => error.with_hint("did you mean `continent: EU`?"),
        _ => error,
    })
}

/// Whether the code is free for private use, such as Kosovo's `XK`: `AA`, `QM` to `QZ`, `XA` to `XZ` and
/// `ZZ`.
const fn is_private_use(country: Country) -> bool {
    matches!(country.code(), [b'A', b'A'] | [b'Q', b'M'..=b'Z'] | [b'X', _] | [b'Z', b'Z'])
}

/// Parses a continent code, e.g. `EU`, case-insensitively.
///
/// # Errors
/// Returns a [`ValueError`] that lists all codes.
pub fn continent(text: &str) -> Result<Continent, ValueError> {
    text.parse().map_err(|_| {
        let known = Continent::ALL.map(Continent::code).join(", ");
        ValueError::new(format!("unknown continent {}, expected one of {known}", quoted(text)))
    })
}

/// Parses the number of an autonomous system, e.g. `64500` or `AS64500`.
///
/// # Errors
/// Returns a [`ValueError`] if it is not a number from 1 to 4294967295.
pub fn asn(text: &str) -> Result<Asn, ValueError> {
    let number = match text.get(..2) {
        Some(prefix) if prefix.eq_ignore_ascii_case("AS") => &text[2..],
        _ => text,
    };
    let is_number = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
    if !is_number {
        return Err(ValueError::new(format!(
            "expected an AS number such as `AS64500`, got {}",
            quoted(text)
        )));
    }
    match number.parse() {
        Ok(number) if number > 0 => Ok(Asn(number)),
        _ => {
            Err(ValueError::new(format!("expected an AS number from 1 to 4294967295, got {}", quoted(text))))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error_text<T: std::fmt::Debug>(result: Result<T, ValueError>) -> String {
        let error = result.unwrap_err();
        error.hint.map(|hint| format!("{} ({hint})", error.message)).unwrap_or(error.message)
    }

    #[test]
    fn country_codes_are_case_insensitive_iso_3166() {
        assert_eq!(country("de").unwrap().to_string(), "DE");
        assert_eq!(country("NO").unwrap(), country("no").unwrap());
        assert_eq!(country("xk").unwrap().code(), *b"XK");
        assert_eq!(COUNTRIES.split(' ').count(), 249);
        assert!(COUNTRIES.split(' ').is_sorted() && COUNTRIES.split(' ').all(|code| country(code).is_ok()));
    }

    #[test]
    fn invalid_country_code_is_rejected_with_suggestion() {
        assert_eq!(error_text(country("UK")), "unknown country code \"UK\" (did you mean `GB`?)");
        assert_eq!(error_text(country("eu")), "unknown country code \"eu\" (did you mean `continent: EU`?)");
        assert_eq!(error_text(country("QA ")).split(',').next_back(), Some(" as in ISO 3166)"));
        for text in ["", "D", "DEU", "d1", "é", "Brazil"] {
            assert!(error_text(country(text)).starts_with("expected a country code such as `DE`"), "{text}");
        }
        assert_eq!(error_text(country("QL")), "unknown country code \"QL\"");
    }

    #[test]
    fn continent_codes_are_case_insensitive() {
        assert!(Continent::ALL.into_iter().all(|known| continent(known.code()) == Ok(known)));
        assert_eq!(continent("eu"), Ok(Continent::Europe));
        assert_eq!(
            error_text(continent("Europe")),
            "unknown continent \"Europe\", expected one of AF, AN, AS, EU, NA, OC, SA"
        );
    }

    #[test]
    fn as_number_is_parsed_with_or_without_prefix() {
        assert_eq!(asn("AS64500"), Ok(Asn(64500)));
        assert_eq!(asn("as4294967295"), Ok(Asn(u32::MAX)));
        assert_eq!(asn("64500"), Ok(Asn(64500)));
        assert_eq!(error_text(asn("0")), "expected an AS number from 1 to 4294967295, got \"0\"");
        assert_eq!(
            error_text(asn("AS4294967296")),
            "expected an AS number from 1 to 4294967295, got \"AS4294967296\""
        );
        for text in ["", "AS", "AS-1", "+1", "ASN64500", "1.10", "ü1"] {
            assert!(error_text(asn(text)).starts_with("expected an AS number such as `AS64500`"), "{text}");
        }
    }
}
