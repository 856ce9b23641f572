//! The real sources of the limiter, included through symbolic links, with locks that the test can schedule.

pub mod limiter;
