//! Status codes of responses.

use std::ops::RangeInclusive;

use crate::diagnostic::ValueError;
use crate::quoting::quoted;

/// Valid status codes (RFC 9110 section 15).
const VALID_CODES: RangeInclusive<u16> = 100..=599;

/// Parses a status code (`401`), a class (`4xx`) or a range (`500-504`).
///
/// # Errors
/// Returns a [`ValueError`] that describes what is expected.
pub fn status_range(text: &str) -> Result<RangeInclusive<u16>, ValueError> {
    let expected =
        || format!("expected a status code such as `401`, `4xx` or `500-504`, got {}", quoted(text));
    let trimmed = text.trim();
    if let Some(class) = trimmed.strip_suffix("xx").or_else(|| trimmed.strip_suffix("XX")) {
        return match class.parse::<u16>() {
            Ok(class @ 1..=5) => Ok(class * 100..=class * 100 + 99),
            _ => Err(ValueError::new(expected()).with_hint("classes are `1xx` to `5xx`")),
        };
    }
    let (first, last) = trimmed.split_once('-').unwrap_or((trimmed, trimmed));
    let code = |text: &str| match text.trim().parse::<u16>() {
        Ok(code) if VALID_CODES.contains(&code) => Ok(code),
        Ok(_) => Err(ValueError::new(expected()).with_hint("status codes are 100 to 599")),
        Err(_) => Err(ValueError::new(expected())),
    };
    let (first, last) = (code(first)?, code(last)?);
    if first > last {
        return Err(ValueError::new(format!("expected a range from low to high, got {}", quoted(text)))
            .with_hint(format!("write `{last}-{first}`")));
    }
    Ok(first..=last)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn status_codes_classes_and_ranges_are_parsed() {
        assert_eq!(status_range("401"), Ok(401..=401));
        assert_eq!(status_range("4xx"), Ok(400..=499));
        assert_eq!(status_range(" 5XX "), Ok(500..=599));
        assert_eq!(status_range("500-504"), Ok(500..=504));
        assert_eq!(status_range("500 - 504"), Ok(500..=504));
    }

    #[test]
    fn invalid_statuses_are_rejected() {
        for text in ["", "xx", "6xx", "0xx", "40", "99", "600", "4x", "-", "500-", "-504", "504-500", "+401x"]
        {
            assert!(status_range(text).is_err(), "{text:?}");
        }
        assert_eq!(status_range("504-500").unwrap_err().hint.as_deref(), Some("write `500-504`"));
    }
}
