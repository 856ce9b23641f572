//! Configuration from a central place, over HTTP: fetched, awaited by long polls, and kept on disk for when the server is away.
//!
//! What a document means is the business of `config`, and what becomes of it that of `app`. [`follower`] sends the requests and
//! decides when the next one is due, [`client`] does one exchange, [`cache`] keeps the last good document.

pub mod cache;
pub mod document;
pub mod follower;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzzing;
pub mod settings;

mod client;
mod envelope;
mod pacing;
