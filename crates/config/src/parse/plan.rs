//! Names of plans.

use crate::defaults::MAX_NAME_LENGTH;
use crate::diagnostic::ValueError;

/// Parses the name of a plan. Invalid names are not quoted, because one may be an API key in the wrong place.
///
/// # Errors
/// Returns a [`ValueError`] if it is empty, too long, or contains anything except visible ASCII.
pub fn plan_name(text: &str) -> Result<Box<str>, ValueError> {
    let is_visible = text.bytes().all(|byte| byte.is_ascii_graphic() && !matches!(byte, b'"' | b'\\'));
    if text.is_empty() {
        return Err(ValueError::new("empty plan name"));
    }
    if !is_visible || text.len() > MAX_NAME_LENGTH {
        return Err(ValueError::new(format!(
            "invalid plan name, expected visible ASCII without quotes and backslashes, at most \
             {MAX_NAME_LENGTH} characters"
        )));
    }
    Ok(text.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_plan_name_is_rejected_and_never_quoted() {
        assert_eq!(&*plan_name("pro-2").unwrap(), "pro-2");
        for text in ["", "two words", "a\"b", "ü", "sk_live\n", &"x".repeat(129)] {
            let error = plan_name(text).unwrap_err();
            assert!(text.is_empty() || !error.message.contains(text), "{}", error.message);
        }
    }
}
