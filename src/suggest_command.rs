//! `weir suggest`: limits from the traffic of a running instance.

use std::error::Error as _;

use crate::admin_client::{self, AdminClientError};

/// Status of a response with suggestions.
const OK: u16 = 200;
/// Status of a response to a request without the token.
const UNAUTHORIZED: u16 = 401;
/// Status of an instance that does not have the path.
const NOT_FOUND: u16 = 404;

/// Returns the suggestions of the instance whose admin port is at `address`, as YAML.
///
/// # Errors
/// What prevents them, in one line.
pub fn run(address: &str, token: Option<&str>, may_lower: bool) -> Result<String, String> {
    let target = if may_lower { "/limits/suggestions?lower" } else { "/limits/suggestions" };
    let authorization = token.map(|token| format!("Bearer {token}"));
    let response = admin_client::get(address, target, authorization.as_deref()).map_err(|error| {
        let cause = error.source().map(|cause| format!(": {cause}")).unwrap_or_default();
        format!("{error}{cause}")
    })?;
    let text = String::from_utf8_lossy(&response.body).into_owned();
    match response.status {
        OK => Ok(text),
        UNAUTHORIZED => Err(AdminClientError::Unauthorized.to_string()),
        NOT_FOUND => Err(format!("{address}: this instance makes no suggestions, or is no Weir")),
        status => Err(format!("{address}: {status} {}", text.trim_end())),
    }
}
