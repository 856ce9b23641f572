//! Tests of the whole, through the library and the binary.

mod config_mistakes;
