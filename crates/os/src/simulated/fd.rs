//! Descriptors as values.
use std::marker::PhantomData;

use super::poll::drop_descriptor;

/// A descriptor that is closed when dropped.
#[derive(Debug)]
pub struct OwnedFd(usize);

/// A borrowed descriptor.
#[derive(Clone, Copy, Debug)]
pub struct BorrowedFd<'a>(usize, PhantomData<&'a OwnedFd>);

/// An owner of a descriptor.
pub trait AsFd {
    /// The descriptor.
    fn as_fd(&self) -> BorrowedFd<'_>;
}

/// An owner of a descriptor with a number.
pub trait AsRawFd {
    /// The number.
    fn as_raw_fd(&self) -> i32;
}

impl OwnedFd {
    pub(super) fn new(number: usize) -> OwnedFd {
        OwnedFd(number)
    }

    pub(super) fn number(&self) -> usize {
        self.0
    }
}

impl BorrowedFd<'_> {
    pub(super) fn number(self) -> usize {
        self.0
    }
}

impl Drop for OwnedFd {
    fn drop(&mut self) {
        drop_descriptor(self.0);
    }
}

impl AsFd for OwnedFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        BorrowedFd(self.0, PhantomData)
    }
}

impl AsFd for BorrowedFd<'_> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        *self
    }
}

impl<T: AsFd + ?Sized> AsFd for &T {
    fn as_fd(&self) -> BorrowedFd<'_> {
        (**self).as_fd()
    }
}

impl<T: AsFd + ?Sized> AsFd for std::sync::Arc<T> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        (**self).as_fd()
    }
}

impl<T: AsFd> AsRawFd for T {
    fn as_raw_fd(&self) -> i32 {
        self.as_fd().number() as i32
    }
}
