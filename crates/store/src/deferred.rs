//! Deferred calls: requests that are accepted at once, stored in streams of Redis or Valkey, and sent later at the rate of
//! a rule's limit.
//!
//! [`handle::DeferredHandle`] is the workers' interface: it appends calls, and hands those that are to be sent to workers.
//! [`task`] runs on a thread of its own with one [`sender`] per rule. A sender reads calls as a member of a consumer group
//! and settles each: removed, retried later, or moved to the dead-letter stream. There is no HTTP here: workers send.

pub mod call;
pub mod handle;
pub mod task;

#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzzing;

mod body_memory;
mod held;
mod outcome;
mod parse;
mod sender;
mod status;
mod stream;

pub use self::body_memory::BodyMemory;
pub use self::handle::Reporter;
pub use self::outcome::{SendOutcome, SendReport};
pub use self::status::{DeadLetter, DeferredRuleStatus, DeferredStatus};
