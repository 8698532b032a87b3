//! From a name to what bears it, once for all that have names.
use thiserror::Error;

/// A name that nothing bears.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("'{given}' is none of {}", .known.join(", "))]
pub struct UnknownName {
    given: String,
    known: Vec<&'static str>,
}

/// Which of these bears a name.
///
/// # Errors
/// None of them; the message names all.
pub fn find<T: Copy>(given: &str, all: &[T], name: impl Fn(T) -> &'static str) -> Result<T, UnknownName> {
    all.iter()
        .copied()
        .find(|&one| name(one) == given)
        .ok_or_else(|| UnknownName { given: given.to_owned(), known: all.iter().map(|&one| name(one)).collect() })
}
