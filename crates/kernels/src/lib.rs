//! Element types and the arithmetic on buffers of them.
//!
//! | module | holds |
//! | --- | --- |
//! | [`dtype`] | element types and reduction operations |
//! | [`names`] | from a name to what bears it |
//! | [`reduce`] | kernels: combine, scale, copy |
pub mod dtype;
pub mod names;
pub mod reduce;
