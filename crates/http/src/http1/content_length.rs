//! `Content-Length`: parsed strictly, and always written in normal form (RFC 9110 section 8.6).
//!
//! A length is never copied from one side to the other, because recipients could read it differently. `007` is seven
//! here and may be something else to the next one. Empty or repeated headers count as no length for some, and as the
//! first of several for others.

use http::header::CONTENT_LENGTH;
use http::{HeaderMap, HeaderValue};

use super::head::parse_number;
use super::malformed::MalformedMessage;

/// Maximum length. A larger one would be negative as a signed 64-bit integer.
const MAX_LENGTH: u64 = i64::MAX as u64;

/// Parses a length, which must consist of digits only.
pub fn parse(value: &[u8]) -> Option<u64> {
    parse_number(value).filter(|bytes| *bytes <= MAX_LENGTH)
}

/// Whether a length is in normal form: digits without leading zeros.
pub fn is_normal(value: &[u8]) -> bool {
    !matches!(value, [] | [b'0', _, ..]) && value.iter().all(u8::is_ascii_digit)
}

/// Reduces the `Content-Length` headers to one in normal form if all have the same value. Returns that value, if there
/// are any.
///
/// # Errors
/// If a value is not a length, or if the values differ.
pub fn normalise(headers: &mut HeaderMap) -> Result<Option<u64>, MalformedMessage> {
    let mut fields = headers.get_all(CONTENT_LENGTH).iter();
    let Some(first) = fields.next() else { return Ok(None) };
    let bytes = parse(first.as_bytes()).ok_or(MalformedMessage::ContentLength)?;
    let mut is_written = is_normal(first.as_bytes());
    for other in fields {
        if parse(other.as_bytes()) != Some(bytes) {
            return Err(MalformedMessage::ContentLength);
        }
        is_written = false;
    }
    if !is_written {
        headers.insert(CONTENT_LENGTH, HeaderValue::from(bytes));
    }
    Ok(Some(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn normalised(values: &[&'static str]) -> Result<Vec<String>, MalformedMessage> {
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
    fn equal_content_lengths_are_normalised_to_one() {
        assert_eq!(normalised(&[]).unwrap(), [""; 0]);
        for same in [&["5"][..], &["5", "5"], &["005"], &["5", "05", "0000000000000000000000000005"]] {
            assert_eq!(normalised(same).unwrap(), ["5"], "{same:?}");
        }
        assert_eq!(normalised(&["0"]).unwrap(), ["0"]);
        assert_eq!(normalised(&["00"]).unwrap(), ["0"]);
        assert_eq!(normalised(&["9223372036854775807"]).unwrap(), ["9223372036854775807"]);
    }

    #[test]
    fn invalid_content_length_is_rejected() {
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
            assert_eq!(normalised(&[wrong]), Err(MalformedMessage::ContentLength), "{wrong:?}");
            assert_eq!(normalised(&["5", wrong]), Err(MalformedMessage::ContentLength), "{wrong:?}");
        }
        assert_eq!(normalised(&["5", "6"]), Err(MalformedMessage::ContentLength));
    }
}
