//! Finds UCX: the host's own comes first, because it was built for the host's network cards.
use std::path::{Path, PathBuf};

use libloading::os::unix::{Library, RTLD_LAZY};

/// The name under which every UCX since 1.0 is installed; `libucp.so` comes only with the headers.
const NAME: &str = "libucp.so.0";
/// Variables of NVIDIA's HPC-X, and of modules that load a UCX: folders that contain `lib`.
const PREFIXES: [&str; 2] = ["HPCX_UCX_DIR", "UCX_HOME"];

/// Where to look, in order. `named`: the user's path of a file, or of a folder that contains one. `package`: the folder of a
/// Python package's libraries.
pub(super) fn candidates(named: Option<&str>, package: Option<&str>) -> Vec<PathBuf> {
    if let Some(path) = named.map(Path::new) {
        return vec![if path.is_dir() { path.join(NAME) } else { path.into() }];
    }
    let prefixes = PREFIXES.iter().filter_map(std::env::var_os).map(PathBuf::from);
    let files = prefixes.map(|prefix| prefix.join("lib").join(NAME)).filter(|file| file.is_file());
    let package = package.map(|folder| Path::new(folder).join(NAME)).filter(|file| file.is_file());
    files.chain([PathBuf::from(NAME)]).chain(package).collect()
}

/// Whether other code in this process has loaded UCX: then that one must be used.
pub(super) fn is_loaded() -> bool {
    #![allow(unsafe_code, reason = "nothing is loaded, so that nothing runs")]
    // SAFETY: as above.
    unsafe { Library::open(Some(NAME), RTLD_LAZY | libc::RTLD_NOLOAD) }.is_ok()
}

/// Files beside the library that this process has loaded, among them UCX's modules, each for some transports.
pub(super) fn modules() -> Vec<String> {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
    let library = maps.lines().filter_map(|line| line.find('/').map(|at| Path::new(&line[at..])));
    let mut named =
        library.filter(|path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("libucp.so")));
    let Some(folder) = named.next().and_then(Path::parent) else { return Vec::new() };
    let entries =
        [folder.to_path_buf(), folder.join("ucx")].into_iter().filter_map(|folder| std::fs::read_dir(folder).ok());
    entries.flatten().flatten().map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_user_names_is_the_only_candidate() {
        assert_eq!(
            candidates(Some("/nowhere/libucp.so.0"), Some("/elsewhere")),
            [PathBuf::from("/nowhere/libucp.so.0")]
        );
        let folder = std::env::temp_dir();
        assert_eq!(candidates(folder.to_str(), None), [folder.join(NAME)]);
    }

    #[test]
    fn the_hosts_comes_before_a_packages() {
        let folder = std::env::temp_dir().join(format!("paceline-ucx-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join(NAME), "").unwrap();
        let all = candidates(None, folder.to_str());
        assert_eq!(all[all.len() - 2..], [PathBuf::from(NAME), folder.join(NAME)]);
        std::fs::remove_dir_all(&folder).unwrap();
        assert_eq!(candidates(None, folder.to_str()).last(), Some(&PathBuf::from(NAME)));
    }
}
