//! HTTP/1.1 server: reads requests, writes responses.

pub mod conn;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzzing;
pub mod request_head;
pub mod response_head;

mod read_ahead;
