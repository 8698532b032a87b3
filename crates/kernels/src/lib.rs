//! Element types and the arithmetic on buffers of them.
//!
//! | module | holds |
//! | --- | --- |
//! | [`dtype`] | element types and reduction operations |
//! | [`reduce`] | kernels: combine, scale, copy |
pub mod dtype;
pub mod reduce;
