//! Names of plans.

use crate::config::defaults::LONGEST_NAME;
use crate::config::problem::Fault;

/// Parses the name of a plan. Invalid names are not quoted, because one may be an API key in the wrong place.
///
/// # Errors
/// Returns a [`Fault`] if it is empty, too long, or contains anything except visible ASCII.
pub fn plan(text: &str) -> Result<Box<str>, Fault> {
    let is_visible = text.bytes().all(|byte| byte.is_ascii_graphic() && !matches!(byte, b'"' | b'\\'));
    if text.is_empty() {
        return Err(Fault::new("empty plan name"));
    }
    if !is_visible || text.len() > LONGEST_NAME {
        return Err(Fault::new(format!(
            "invalid plan name, expected visible ASCII without quotes and backslashes, at most \
             {LONGEST_NAME} characters"
        )));
    }
    Ok(text.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_short_and_visible_and_what_is_none_is_not_quoted() {
        assert_eq!(&*plan("pro-2").unwrap(), "pro-2");
        for text in ["", "two words", "a\"b", "ü", "sk_live\n", &"x".repeat(129)] {
            let fault = plan(text).unwrap_err();
            assert!(text.is_empty() || !fault.message.contains(text), "{}", fault.message);
        }
    }
}
