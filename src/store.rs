//! The store that instances share: Redis or Valkey, on a thread and connections of its own.

pub mod settings;
