//! Locks.
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks; a thread that panicked meanwhile has left nothing half done that others could not see.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
