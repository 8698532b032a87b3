//! Getters and classes of plain fields, one line each.

use pyo3::prelude::*;

/// The `#[pymethods]` of a class: its getters as `name: type = value;`, then the other methods.
macro_rules! getters {
    ($class:ident, $own:ident { $($(#[doc = $doc:literal])* $name:ident: $type:ty = $value:expr;)* } $($rest:tt)*) => {
        #[pymethods]
        impl $class {
            $($rest)*

            $($(#[doc = $doc])* #[getter] fn $name(&$own) -> $type { $value })*
        }
    };
}

/// A class of plain fields, which are the arguments of its constructor in the order of the signature.
macro_rules! record {
    ($(#[doc = $doc:literal])* $class:ident $signature:tt { $($field:ident: $type:ty),* $(,)? }) => {
        $(#[doc = $doc])*
        #[pyclass(frozen, eq, get_all, from_py_object, module = "paceline._core")]
        #[derive(Clone, PartialEq)]
        pub struct $class { $($field: $type),* }

        #[pymethods]
        impl $class {
            #[new]
            #[pyo3(signature = $signature)]
            fn new($($field: $type),*) -> $class {
                $class { $($field),* }
            }

            fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
                let fields = [$((stringify!($field), self.$field.clone().into_bound_py_any(py)?)),*];
                $crate::fields::call(stringify!($class), &fields)
            }
        }
    };
}

pub(crate) use {getters, record};

/// The call that makes an object with these arguments, in Python's words.
pub fn call(class: &str, arguments: &[(&str, Bound<'_, PyAny>)]) -> PyResult<String> {
    let each = arguments.iter().map(|(name, value)| Ok(format!("{name}={}", value.repr()?)));
    Ok(format!("{class}({})", each.collect::<PyResult<Vec<_>>>()?.join(", ")))
}
