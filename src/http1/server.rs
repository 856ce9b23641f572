//! The server's side: requests are read, responses written.

pub mod conn;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzzing;
pub mod request_head;
pub mod response_head;
