//! How ranks find and prove each other.
