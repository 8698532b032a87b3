//! Whether the library takes addresses of the memory of CUDA devices (CUDA-aware MPI).
//!
//! The standard has no function for that. Open MPI and MPICH have one of their own; MPICH's library of the standard ABI has
//! not. There the hint `mpi_memory_alloc_kinds` says it (MPI 4.1; the kind `cuda` is in the forum's side document on memory
//! allocation kinds), if `mpiexec -memory-alloc-kinds` asks for it.
use paceline_transport::offload::{DeviceSupport, OnDevices};

use super::abi::OPEN_MPI;
use super::calls::Mpi;

/// Variables with which Open MPI leaves non-blocking collectives on device memory to HCOLL. Its own non-blocking reductions
/// read that memory on the host, and end with a segmentation fault (open-mpi/ompi#9845, #12045; "Which MPI APIs do NOT work
/// with CUDA-aware" in its documentation).
const HCOLL: [&str; 2] = ["HCOLL_GPU_ENABLE", "HCOLL_ENABLE_NBC"];

/// Asks the library, which has been initialized.
pub(super) fn support(mpi: &Mpi) -> DeviceSupport {
    let (said, takes) = match mpi.takes_device_memory() {
        Some((function, takes)) => (format!("{function} says {}", if takes { "yes" } else { "no" }), takes),
        None => by_hint(mpi.hint(c"mpi_memory_alloc_kinds")),
    };
    let combines = mpi.abi() != OPEN_MPI || HCOLL.iter().all(|name| std::env::var_os(name).is_some_and(|on| on == "1"));
    match (takes, combines) {
        (false, _) => DeviceSupport { takes: OnDevices::Nothing, said },
        (true, true) => DeviceSupport { takes: OnDevices::Combines, said },
        (true, false) => DeviceSupport {
            takes: OnDevices::Moves,
            said: format!("{said}, but Open MPI's non-blocking reductions need HCOLL ({}=1, {}=1)", HCOLL[0], HCOLL[1]),
        },
    }
}

/// The hint is a list of kinds with restrictors: `mpi,system,cuda:device`. Without any, a kind is all of its memory.
fn by_hint(hint: Result<Option<String>, String>) -> (String, bool) {
    match hint {
        Ok(Some(kinds)) if kinds.split(',').any(is_on_devices) => (format!("mpi_memory_alloc_kinds is {kinds}"), true),
        Ok(kinds) => {
            let kinds = kinds.unwrap_or_else(|| "not set".into());
            (format!("it has no MPIX_Query_cuda_support, and mpi_memory_alloc_kinds is {kinds}"), false)
        }
        Err(why) => (why, false),
    }
}

fn is_on_devices(kind: &str) -> bool {
    let (kind, restrictors) = kind.trim().split_once(':').unwrap_or((kind.trim(), "device"));
    kind == "cuda" && restrictors.split(':').any(|restrictor| restrictor == "device")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hint_names_cuda_with_or_without_restrictors() {
        for kinds in ["cuda", "mpi,system,cuda:device", "system, cuda:host:device", "cuda:host,cuda:device"] {
            assert!(by_hint(Ok(Some(kinds.into()))).1, "{kinds}");
        }
        for kinds in [Some("mpi,system"), Some("rocm:cuda"), Some("system,cuda:host:managed"), None] {
            let (said, takes) = by_hint(Ok(kinds.map(String::from)));
            assert!(!takes && said.contains("mpi_memory_alloc_kinds"), "{said}");
        }
        assert_eq!(by_hint(Err("MPI_Comm_get_info: no".into())), ("MPI_Comm_get_info: no".into(), false));
    }
}
