//! The client's side: requests are written, responses read.

pub mod conn;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzzing;
pub mod request_head;
pub mod response_head;
pub mod upload;
