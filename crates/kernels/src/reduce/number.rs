//! Types with native arithmetic.

/// The arithmetic on one value. Loops over it are vectorized when compiled for wider machines.
pub trait Number: Copy {
    /// The converted form of a factor.
    type Factor: Copy;

    /// a + b.
    fn sum(self, other: Self) -> Self;
    /// a * b.
    fn product(self, other: Self) -> Self;
    /// The smaller; a NaN wins.
    fn min(self, other: Self) -> Self;
    /// The larger; a NaN wins.
    fn max(self, other: Self) -> Self;
    /// Converts a factor: once per call, not once per value.
    fn factor(factor: f64) -> Self::Factor;
    /// Multiplies.
    fn scale(self, factor: Self::Factor) -> Self;
}

macro_rules! float {
    ($float:ty) => {
        impl Number for $float {
            type Factor = $float;

            #[inline(always)]
            fn sum(self, other: Self) -> Self {
                self + other
            }

            #[inline(always)]
            fn product(self, other: Self) -> Self {
                self * other
            }

            // Two ranks that exchange values call it with swapped arguments and must get the same bits: equal values
            // differ at most in the sign of zero, and all NaNs become one. (The standard library's min and max drop
            // NaNs.)
            #[inline(always)]
            fn min(self, other: Self) -> Self {
                let smaller = if self < other { self } else { other };
                let equal = <$float>::from_bits(self.to_bits() | other.to_bits());
                let number = if self == other { equal } else { smaller };
                if self.is_nan() | other.is_nan() { <$float>::NAN } else { number }
            }

            #[inline(always)]
            fn max(self, other: Self) -> Self {
                let larger = if self > other { self } else { other };
                let equal = <$float>::from_bits(self.to_bits() & other.to_bits());
                let number = if self == other { equal } else { larger };
                if self.is_nan() | other.is_nan() { <$float>::NAN } else { number }
            }

            #[inline(always)]
            fn factor(factor: f64) -> Self {
                factor as $float
            }

            #[inline(always)]
            fn scale(self, factor: Self) -> Self {
                self * factor
            }
        }
    };
}

/// The factor of an integer.
#[derive(Clone, Copy)]
pub enum Multiple {
    Times(f64),
    Over(i64),
}

impl Multiple {
    /// The `f64` nearest to 1/n means a division by n, because 49 times that of 1/49 is less than 1.
    #[inline(always)]
    fn new(factor: f64) -> Self {
        let whole = (1.0 / factor).round();
        if (2.0..=f64::from(u32::MAX)).contains(&whole) && (1.0 / whole).to_bits() == factor.to_bits() {
            return Self::Over(whole as i64);
        }
        Self::Times(factor)
    }
}

/// `$over` divides by a whole number, toward zero.
macro_rules! integer {
    ($integer:ty, $over:expr) => {
        impl Number for $integer {
            type Factor = Multiple;

            #[inline(always)]
            fn sum(self, other: Self) -> Self {
                self.wrapping_add(other)
            }

            #[inline(always)]
            fn product(self, other: Self) -> Self {
                self.wrapping_mul(other)
            }

            #[inline(always)]
            fn min(self, other: Self) -> Self {
                Ord::min(self, other)
            }

            #[inline(always)]
            fn max(self, other: Self) -> Self {
                Ord::max(self, other)
            }

            #[inline(always)]
            fn factor(factor: f64) -> Multiple {
                Multiple::new(factor)
            }

            #[inline(always)]
            fn scale(self, factor: Multiple) -> Self {
                match factor {
                    Multiple::Times(factor) => (self as f64 * factor) as $integer,
                    Multiple::Over(whole) => $over(self, whole),
                }
            }
        }
    };
}

float!(f32);
float!(f64);
// A quotient of 32-bit numbers that is rounded to an f64 never reaches the next integer.
integer!(i32, |value, whole| (f64::from(value) / whole as f64) as i32);
integer!(i64, |value: i64, whole: i64| value / whole);
integer!(u8, |value, whole| (f64::from(value) / whole as f64) as u8);
