//! Puts the parts together, starts them and ends them; the only module that knows them all.

pub mod ending_;
mod generation;
