//! The limiter as it is in the program, with other locks: its own sources, through links, not a copy or a model of
//! them.

pub mod limiter;
