//! Frames that cost work without being useful.
