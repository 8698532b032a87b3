//! What a GPU computes, and what is copied or updated on its host meanwhile: a part of an iteration takes as long as the
//! longer one of both.

/// A part of an iteration, in shares of its time in the trace; the larger one is 1.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Beside {
    /// What the GPU computes.
    pub computed: f64,
    /// What is copied, or updated by the CPUs.
    pub offloaded: f64,
}

impl Default for Beside {
    /// Computation alone.
    fn default() -> Beside {
        Beside { computed: 1.0, offloaded: 0.0 }
    }
}

impl Beside {
    /// How many times longer the part takes on a GPU that computes longer by a factor.
    #[must_use]
    pub fn slower(self, factor: f64) -> f64 {
        (factor * self.computed).max(self.offloaded)
    }

    /// The same part on a GPU that computes longer by a factor.
    #[must_use]
    pub fn on_slower(self, factor: f64) -> Beside {
        let longer = self.slower(factor);
        Beside { computed: factor * self.computed / longer, offloaded: self.offloaded / longer }
    }
}

/// The parts of an iteration.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Offloaded {
    /// The forward pass.
    pub forward: Beside,
    /// The backward pass.
    pub backward: Beside,
    /// The optimizer's step.
    pub optimizer: Beside,
}

impl Offloaded {
    /// The same parts on a GPU that computes longer by a factor.
    #[must_use]
    pub fn on_slower(self, factor: f64) -> Offloaded {
        Offloaded {
            forward: self.forward.on_slower(factor),
            backward: self.backward.on_slower(factor),
            optimizer: self.optimizer.on_slower(factor),
        }
    }
}
