//! HTTP/1.1 client: writes requests, reads responses.

pub mod conn;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzzing;
pub mod request_head;
pub mod response_head;
pub mod upload;
