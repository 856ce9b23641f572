//! The part of `parking_lot` that the limiter uses, built on locks under the control of shuttle's scheduler.

pub use shuttle::sync::MutexGuard;

/// A lock without poisoning: if a thread panics, the test has failed anyway.
#[derive(Debug, Default)]
pub struct Mutex<T>(shuttle::sync::Mutex<T>);

impl<T> Mutex<T> {
    pub fn new(value: T) -> Self {
        Self(shuttle::sync::Mutex::new(value))
    }

    pub fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock().expect("no thread has panicked")
    }
}
