//! Locks and condition variables, with the part of `parking_lot`'s interface that the runtime uses, and atomics.
//!
//! Memory is sequentially consistent: a fence only is a point at which the thread may lose its turn.
#![allow(unsafe_code, reason = "a lock hands out what it guards")]
use std::cell::{Cell, RefCell, UnsafeCell};
use std::collections::VecDeque;
use std::fmt;
use std::ops::{Deref, DerefMut};

pub use std::sync::{Arc, OnceLock, Weak, mpsc};

use super::time::{Duration, Instant};
use super::world::{Token, block, point, try_with, with};

/// A lock.
#[derive(Default)]
pub struct Mutex<T: ?Sized> {
    locked: Cell<bool>,
    waiters: RefCell<VecDeque<Token>>,
    value: UnsafeCell<T>,
}

// SAFETY: all threads of a world run on one thread of the system, and `locked` keeps them apart.
unsafe impl<T: ?Sized + Send> Send for Mutex<T> {}
// SAFETY: as above.
unsafe impl<T: ?Sized + Send> Sync for Mutex<T> {}

/// A held lock.
pub struct MutexGuard<'a, T: ?Sized>(&'a Mutex<T>);

impl<T> Mutex<T> {
    /// An open lock.
    pub fn new(value: T) -> Mutex<T> {
        Mutex { locked: Cell::new(false), waiters: RefCell::default(), value: UnsafeCell::new(value) }
    }
}

impl<T: ?Sized> Mutex<T> {
    /// Waits until it can be locked.
    pub fn lock(&self) -> MutexGuard<'_, T> {
        point();
        self.take()
    }

    fn take(&self) -> MutexGuard<'_, T> {
        while self.locked.replace(true) {
            block("a lock", None, |_, token| self.waiters.borrow_mut().push_back(token));
        }
        MutexGuard(self)
    }

    /// Locks it if nobody has.
    pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        point();
        (!self.locked.replace(true)).then(|| MutexGuard(self))
    }

    /// Whether it is locked.
    pub fn is_locked(&self) -> bool {
        point();
        self.locked.get()
    }

    fn release(&self) {
        self.locked.set(false);
        while let Some(token) = self.waiters.borrow_mut().pop_front() {
            if try_with(|world| world.wake(token)) != Some(false) {
                break;
            }
        }
    }
}

impl<T: ?Sized + fmt::Debug> fmt::Debug for Mutex<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Mutex")
    }
}

impl<T: ?Sized> Drop for MutexGuard<'_, T> {
    fn drop(&mut self) {
        self.0.release();
        point();
    }
}

impl<T: ?Sized> Deref for MutexGuard<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        // SAFETY: the guard holds the lock.
        unsafe { &*self.0.value.get() }
    }
}

impl<T: ?Sized> DerefMut for MutexGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: the guard holds the lock.
        unsafe { &mut *self.0.value.get() }
    }
}

/// A condition variable.
#[derive(Default)]
pub struct Condvar {
    waiters: RefCell<VecDeque<Token>>,
}

// SAFETY: all threads of a world run on one thread of the system.
unsafe impl Send for Condvar {}
// SAFETY: as above.
unsafe impl Sync for Condvar {}

/// Whether a wait ended because of its time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WaitTimeoutResult(bool);

impl WaitTimeoutResult {
    /// Whether it did.
    #[must_use]
    pub fn timed_out(self) -> bool {
        self.0
    }
}

impl fmt::Debug for Condvar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Condvar")
    }
}

impl Condvar {
    /// Nobody waits.
    #[must_use]
    pub fn new() -> Condvar {
        Condvar::default()
    }

    fn sleep<T: ?Sized>(&self, guard: &mut MutexGuard<'_, T>, until: Option<u64>) -> bool {
        point();
        let lock = guard.0;
        let woken = block("a condition variable", until, |world, token| {
            self.waiters.borrow_mut().push_back(token);
            lock.locked.set(false);
            while let Some(next) = lock.waiters.borrow_mut().pop_front() {
                if world.wake(next) {
                    break;
                }
            }
        });
        std::mem::forget(lock.take());
        woken
    }

    /// Waits until notified.
    pub fn wait<T: ?Sized>(&self, guard: &mut MutexGuard<'_, T>) {
        self.sleep(guard, None);
    }

    /// Waits until notified or until the time is up.
    pub fn wait_for<T: ?Sized>(&self, guard: &mut MutexGuard<'_, T>, time: Duration) -> WaitTimeoutResult {
        let until = (Instant::now() + time).nanoseconds();
        WaitTimeoutResult(!self.sleep(guard, Some(until)))
    }

    /// Waits as long as the condition holds, at most for a time.
    pub fn wait_while_for<T: ?Sized>(
        &self,
        guard: &mut MutexGuard<'_, T>,
        mut condition: impl FnMut(&mut T) -> bool,
        time: Duration,
    ) -> WaitTimeoutResult {
        let until = (Instant::now() + time).nanoseconds();
        let mut late = false;
        while condition(&mut **guard) {
            if late {
                return WaitTimeoutResult(true);
            }
            late = !self.sleep(guard, Some(until));
        }
        WaitTimeoutResult(false)
    }

    /// Wakes one.
    pub fn notify_one(&self) -> bool {
        point();
        loop {
            let Some(token) = self.waiters.borrow_mut().pop_front() else { return false };
            if with(|world| world.wake(token)) {
                return true;
            }
        }
    }

    /// Wakes all.
    pub fn notify_all(&self) -> usize {
        point();
        let all = std::mem::take(&mut *self.waiters.borrow_mut());
        all.into_iter().filter(|&token| with(|world| world.wake(token))).count()
    }
}

/// Atomics whose operations are points.
pub mod atomic {
    pub use std::sync::atomic::Ordering;

    use super::super::world::{point, try_with};
    use std::fmt;

    /// A fence: who publishes something has achieved something.
    pub fn fence(_order: Ordering) {
        try_with(super::super::world::World::busy);
        point();
    }

    macro_rules! atomics {
        ($($name:ident: $value:ty),*) => { $(
            /// An atomic.
            #[derive(Default)]
            #[repr(transparent)]
            pub struct $name(std::sync::atomic::$name);

            impl fmt::Debug for $name {
                fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                    self.0.fmt(f)
                }
            }

            impl From<$value> for $name {
                fn from(value: $value) -> $name {
                    $name::new(value)
                }
            }

            #[allow(missing_docs, reason = "as in std")]
            impl $name {
                #[must_use]
                pub const fn new(value: $value) -> $name {
                    $name(std::sync::atomic::$name::new(value))
                }

                #[inline]
                pub fn load(&self, _order: Ordering) -> $value {
                    point();
                    self.0.load(Ordering::SeqCst)
                }

                #[inline]
                pub fn store(&self, value: $value, _order: Ordering) {
                    point();
                    self.0.store(value, Ordering::SeqCst);
                }

                #[inline]
                pub fn swap(&self, value: $value, _order: Ordering) -> $value {
                    point();
                    self.0.swap(value, Ordering::SeqCst)
                }

                /// # Errors
                /// Another value is there.
                #[inline]
                pub fn compare_exchange(
                    &self,
                    current: $value,
                    new: $value,
                    _success: Ordering,
                    _failure: Ordering,
                ) -> Result<$value, $value> {
                    point();
                    self.0.compare_exchange(current, new, Ordering::SeqCst, Ordering::SeqCst)
                }
            }
        )* };
    }
    atomics!(AtomicBool: bool, AtomicU8: u8, AtomicU32: u32, AtomicI32: i32, AtomicU64: u64, AtomicI64: i64, AtomicUsize: usize);

    macro_rules! arithmetic {
        ($($name:ident: $value:ty),*) => { $(
            #[allow(missing_docs, reason = "as in std")]
            impl $name {
                #[inline]
                pub fn fetch_add(&self, value: $value, _order: Ordering) -> $value {
                    point();
                    self.0.fetch_add(value, Ordering::SeqCst)
                }

                #[inline]
                pub fn fetch_sub(&self, value: $value, _order: Ordering) -> $value {
                    point();
                    self.0.fetch_sub(value, Ordering::SeqCst)
                }

                #[inline]
                pub fn fetch_max(&self, value: $value, _order: Ordering) -> $value {
                    point();
                    self.0.fetch_max(value, Ordering::SeqCst)
                }
            }
        )* };
    }
    arithmetic!(AtomicU8: u8, AtomicU32: u32, AtomicI32: i32, AtomicU64: u64, AtomicI64: i64, AtomicUsize: usize);
}
