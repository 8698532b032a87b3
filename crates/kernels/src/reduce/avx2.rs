//! The loops compiled for x86-64 with AVX2 and F16C (Haswell, Zen and later), selected at run time.
//!
//! There is no AVX-512 version: the oldest supported compiler (see `rust-version`) lacks it, and beyond the L1 cache,
//! 32 bytes per instruction are about as fast as the memory.
#[cfg(target_arch = "x86_64")]
mod float16;
#[cfg(target_arch = "x86_64")]
mod x86;

#[cfg(target_arch = "x86_64")]
pub use x86::Avx2;

#[cfg(not(target_arch = "x86_64"))]
pub use other::Avx2;

/// Stands in on other machines, so that the selection needs no conditional compilation.
#[cfg(not(target_arch = "x86_64"))]
mod other {
    use super::super::block::Block;
    use super::super::op::Op;
    use super::super::path::{Kernels, Path, Scale};

    /// Not available on this architecture.
    pub enum Avx2 {}

    impl Avx2 {
        pub fn detect() -> Option<Avx2> {
            None
        }
    }

    impl Path for Avx2 {
        fn kernels<const N: usize, B: Block<N>, O: Op>(&self) -> Kernels {
            match *self {}
        }

        fn scale<const N: usize, B: Block<N>>(&self) -> Scale {
            match *self {}
        }
    }
}
