//! Values that are created on the heap, in the place where they stay.
//!
//! For large values that every request or every connection has. Others are created by `Box::new`.

/// Evaluates an expression and returns its value in a `Box`.
///
/// `Box::new` takes a value that is on the stack, and copies all of it. A future is larger than its arguments: most of it
/// holds nothing before it is polled. With the memory allocated first, an optimising compiler writes the fields to their
/// place. This is a macro, because a value that a closure returns is on the stack again.
#[macro_export]
macro_rules! boxed {
    ($value:expr) => {{
        let memory = Box::new_uninit();
        Box::write(memory, $value)
    }};
}

pub use crate::boxed;
