//! Finds a value by its name; shared by all types with names.
use thiserror::Error;

/// An unknown name.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("'{given}' is not one of {}", .known.join(", "))]
pub struct UnknownName {
    given: String,
    known: Vec<&'static str>,
}

/// The value with this name.
///
/// # Errors
/// There is none; the message lists all names.
pub fn find<T: Copy>(given: &str, all: &[T], name: impl Fn(T) -> &'static str) -> Result<T, UnknownName> {
    all.iter()
        .copied()
        .find(|&one| name(one) == given)
        .ok_or_else(|| UnknownName { given: given.to_owned(), known: all.iter().map(|&one| name(one)).collect() })
}
