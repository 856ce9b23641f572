//! Content-Length: read strictly, and written in our own digits (RFC 9110 section 8.6).
//!
//! A length is never copied from one side to the other. `007` is seven to us and may be something else to whoever reads
//! it next; an empty or doubled field is no length at all to some and the first of several to others.

use http::header::CONTENT_LENGTH;
use http::{HeaderMap, HeaderValue};

use super::head::number_of;
use super::malformed::Malformed;

/// A length beyond this is negative for those that count with a sign.
const MAX_LENGTH: u64 = i64::MAX as u64;

/// The length that these digits are, with nothing around them.
pub fn parse(value: &[u8]) -> Option<u64> {
    number_of(value).filter(|octets| *octets <= MAX_LENGTH)
}

/// Whether a length is written as we write it.
pub fn is_normal(value: &[u8]) -> bool {
    !matches!(value, [] | [b'0', _, ..]) && value.iter().all(u8::is_ascii_digit)
}

/// Leaves one field in our own digits where all that are there say the same number; the number, if there are any.
///
/// # Errors
/// If one of them is not a length, or they differ.
pub fn normalise(headers: &mut HeaderMap) -> Result<Option<u64>, Malformed> {
    let mut fields = headers.get_all(CONTENT_LENGTH).iter();
    let Some(first) = fields.next() else { return Ok(None) };
    let octets = parse(first.as_bytes()).ok_or(Malformed::Length)?;
    let mut is_written = is_normal(first.as_bytes());
    for other in fields {
        if parse(other.as_bytes()) != Some(octets) {
            return Err(Malformed::Length);
        }
        is_written = false;
    }
    if !is_written {
        headers.insert(CONTENT_LENGTH, HeaderValue::from(octets));
    }
    Ok(Some(octets))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn normalised(values: &[&'static str]) -> Result<Vec<String>, Malformed> {
        let fields = values.iter().map(|value| (CONTENT_LENGTH, HeaderValue::from_static(value)));
        let mut headers = HeaderMap::new();
        headers.extend(fields);
        let number = normalise(&mut headers)?;
        let left: Vec<_> =
            headers.get_all(CONTENT_LENGTH).iter().map(|value| value.to_str().unwrap().to_owned()).collect();
        assert_eq!(number.map(|number| number.to_string()).as_ref(), left.first());
        Ok(left)
    }

    #[test]
    fn one_length_is_left_and_it_is_in_our_digits() {
        assert_eq!(normalised(&[]).unwrap(), [""; 0]);
        for same in [&["5"][..], &["5", "5"], &["005"], &["5", "05", "0000000000000000000000000005"]] {
            assert_eq!(normalised(same).unwrap(), ["5"], "{same:?}");
        }
        assert_eq!(normalised(&["0"]).unwrap(), ["0"]);
        assert_eq!(normalised(&["00"]).unwrap(), ["0"]);
        assert_eq!(normalised(&["9223372036854775807"]).unwrap(), ["9223372036854775807"]);
    }

    #[test]
    fn what_is_no_length_is_an_error() {
        let wrong = [
            "",
            "+5",
            "-5",
            "5 ",
            " 5",
            "5, 5",
            "5,",
            "0x5",
            "5.0",
            "9223372036854775808",
            "18446744073709551621",
        ];
        for wrong in wrong {
            assert_eq!(normalised(&[wrong]), Err(Malformed::Length), "{wrong:?}");
            assert_eq!(normalised(&["5", wrong]), Err(Malformed::Length), "{wrong:?}");
        }
        assert_eq!(normalised(&["5", "6"]), Err(Malformed::Length));
    }
}
