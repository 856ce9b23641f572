//! stub
mod ending;
mod generation;
