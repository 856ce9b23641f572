//! The token of the admin port.

use std::fmt;

use aws_lc_rs::constant_time;

/// Minimum length of a token, in bytes.
pub const MIN_ADMIN_TOKEN_LENGTH: usize = 16;

/// A bearer token, visible ASCII. `Debug` masks it.
#[derive(Clone, PartialEq, Eq)]
pub struct AdminToken(Box<str>);

/// Why a text cannot be a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AdminTokenError {
    /// It is easy to guess.
    #[error("shorter than {MIN_ADMIN_TOKEN_LENGTH} characters")]
    TooShort,
    /// A header could not contain it.
    #[error("expected visible ASCII without spaces")]
    NotVisible,
}

impl AdminToken {
    /// Creates a token.
    ///
    /// # Errors
    /// [`AdminTokenError`] if the text is too short or cannot be sent in a header.
    pub fn new(text: &str) -> Result<Self, AdminTokenError> {
        if !text.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(AdminTokenError::NotVisible);
        }
        if text.len() < MIN_ADMIN_TOKEN_LENGTH {
            return Err(AdminTokenError::TooShort);
        }
        Ok(Self(text.into()))
    }

    /// Whether `given` is this token. The time depends on the lengths only.
    pub fn matches(&self, given: &[u8]) -> bool {
        constant_time::verify_slices_are_equal(self.0.as_bytes(), given).is_ok()
    }

    /// Returns the value of `authorization` that has this token.
    pub fn to_authorization(&self) -> String {
        format!("Bearer {}", self.0)
    }
}

impl fmt::Debug for AdminToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("AdminToken")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn admin_token_matches_only_itself() {
        let token = AdminToken::new("0123456789abcdef").unwrap();
        assert!(token.matches(b"0123456789abcdef"));
        for other in [&b""[..], b"0123456789abcde", b"0123456789abcdeF", b"0123456789abcdef0"] {
            assert!(!token.matches(other));
        }
        assert_eq!(format!("{token:?}"), "AdminToken");
    }

    #[test]
    fn admin_tokens_that_cannot_be_sent_or_are_guessed_easily_are_rejected() {
        assert_eq!(AdminToken::new("0123456789abcde"), Err(AdminTokenError::TooShort));
        for text in ["0123456789 abcdef", "0123456789abcdé", "0123456789abcdef\n"] {
            assert_eq!(AdminToken::new(text), Err(AdminTokenError::NotVisible));
        }
    }
}
