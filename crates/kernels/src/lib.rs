//! Element types and arithmetic on buffers of elements.
//!
//! | module | holds |
//! | --- | --- |
//! | [`dtype`] | element types and reduction operations |
//! | [`names`] | finds a value by its name |
//! | [`reduce`] | kernels: combine, scale, copy |
pub mod dtype;
pub mod names;
pub mod reduce;
