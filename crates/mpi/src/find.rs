//! Finds the MPI library: it must be the launcher's, otherwise every process becomes rank 0 of 1.
use std::path::{Path, PathBuf};

use libloading::os::unix::{Library, RTLD_LAZY};

/// Versioned names, because `libmpi.so` and `libmpi_abi.so` are linker scripts in the wheels on PyPI.
const NAMES: [&str; 2] = ["libmpi_abi.so.1", "libmpi.so.40"];
/// MPICH's older ABI, whose handles have other values: where mpi4py has loaded it, MPI is initialized, but we cannot
/// use it.
pub(super) const OTHERS: &str = "libmpi.so.12";
/// Launcher programs whose children are ranks: MPICH's, and Open MPI's on the first host and on others.
const LAUNCHERS: [&str; 7] = ["hydra_pmi_proxy", "prterun", "prted", "orted", "mpirun", "mpiexec", "mpiexec.hydra"];
/// Where Open MPI's launcher tells its ranks that it is installed.
const PREFIXES: [&str; 2] = ["OPAL_PREFIX", "PMIX_PREFIX"];
/// Number of ancestors of a rank to look at.
const ANCESTORS: usize = 16;

/// Where to look, in order. `named`: the user's path of a file, or of a folder that contains one.
pub(super) fn candidates(named: Option<&str>) -> Vec<PathBuf> {
    if let Some(path) = named.map(Path::new) {
        return if path.is_dir() { NAMES.iter().map(|name| path.join(name)).collect() } else { vec![path.into()] };
    }
    let loaded = NAMES.iter().filter(|name| is_loaded(name)).map(PathBuf::from);
    let prefixes = PREFIXES.iter().filter_map(std::env::var_os).map(PathBuf::from).chain(launcher());
    let beside = |prefix: PathBuf| ["lib", "lib64"].map(|folder| prefix.join(folder));
    let files = prefixes.flat_map(beside).flat_map(|folder| NAMES.map(|name| folder.join(name)));
    let mut all: Vec<PathBuf> =
        loaded.chain(files.filter(|file| file.is_file())).chain(NAMES.map(PathBuf::from)).collect();
    let mut seen = std::collections::HashSet::new();
    all.retain(|path| seen.insert(path.clone()));
    all
}

/// Whether other code in this process, such as mpi4py, has loaded it: then this one must be used.
pub(super) fn is_loaded(name: &str) -> bool {
    #![allow(unsafe_code, reason = "nothing is loaded, so that nothing runs")]
    // SAFETY: as above.
    unsafe { Library::open(Some(name), RTLD_LAZY | libc::RTLD_NOLOAD) }.is_ok()
}

/// The parent of the folder with the program that started this process, if that is a launcher.
fn launcher() -> Option<PathBuf> {
    let mut process = rustix::process::getppid()?.as_raw_nonzero().get();
    for _ in 0..ANCESTORS {
        let program = std::fs::read_link(format!("/proc/{process}/exe")).ok()?;
        if program.file_name().is_some_and(|name| LAUNCHERS.iter().any(|launcher| name == *launcher)) {
            return Some(program.parent()?.parent()?.into());
        }
        // The fourth field is the parent's pid (proc(5)); the second, a name in brackets, may contain spaces.
        let line = std::fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
        process = line.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()?;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_user_names_is_the_only_candidate() {
        assert_eq!(candidates(Some("/nowhere/libmpi_abi.so.1")), [PathBuf::from("/nowhere/libmpi_abi.so.1")]);
    }

    #[test]
    fn a_folder_may_hold_either() {
        let folder = std::env::temp_dir();
        assert_eq!(candidates(folder.to_str()), NAMES.map(|name| folder.join(name)));
    }

    #[test]
    fn the_names_of_the_system_come_last() {
        let all = candidates(None);
        assert_eq!(all[all.len() - 2..], NAMES.map(PathBuf::from));
    }
}
