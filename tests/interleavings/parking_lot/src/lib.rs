//! As much of `parking_lot` as the limiter uses, over locks that belong to shuttle's scheduler.

pub use shuttle::sync::MutexGuard;

/// A lock without poisoning: a test that panics has failed anyway.
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
