//! Reads a file named by the user, which may be anything.
use std::fs::{self, File};
use std::io::{ErrorKind, Read};
use std::path::Path;

use super::{DocumentError, MAX_BYTES, with_remedy};

/// Reads a regular file of at most [`MAX_BYTES`].
pub(crate) fn read(path: &Path) -> Result<Vec<u8>, DocumentError> {
    let source = path.to_string_lossy();
    let wrong = |message: &str, remedy: &str| DocumentError::at(&source, "", &with_remedy(message, remedy));
    let io = |error: std::io::Error| match error.kind() {
        ErrorKind::NotFound => wrong("no such file", &list_of(path)),
        ErrorKind::PermissionDenied => wrong("permission denied", &format!("chmod a+r {source}")),
        _ => wrong(&format!("cannot be read: {error}"), &list_of(path)),
    };
    // Checked before opening, because opening a pipe without a writer would hang.
    let metadata = fs::metadata(path).map_err(io)?;
    if metadata.is_dir() {
        return Err(wrong("is a directory", &format!("a file in it (list: ls {source})")));
    }
    if !metadata.is_file() {
        return Err(wrong("is a pipe or a device", &format!("a regular file: cat {source} > copy.json")));
    }
    let too_large = |bytes: u64| {
        #[expect(clippy::cast_precision_loss, reason = "shown with one digit")]
        let megabytes = bytes as f64 / 1e6;
        wrong(
            &format!("has {megabytes:.1} MB, more than the {} MB that are read", MAX_BYTES / 1_000_000),
            "a smaller file",
        )
    };
    if metadata.len() > MAX_BYTES {
        return Err(too_large(metadata.len()));
    }
    let mut bytes = Vec::new();
    // Limited again: the file may grow, and files in /proc report a size of 0.
    File::open(path).and_then(|file| file.take(MAX_BYTES + 1).read_to_end(&mut bytes)).map_err(io)?;
    if bytes.len() as u64 > MAX_BYTES {
        return Err(too_large(bytes.len() as u64));
    }
    Ok(bytes)
}

/// What lists the files among which the wanted one may be.
fn list_of(path: &Path) -> String {
    let folder = path.ancestors().skip(1).find(|folder| folder.as_os_str().is_empty() || folder.is_dir());
    match folder.map(Path::to_string_lossy) {
        Some(folder) if !folder.is_empty() => format!("another path (list: ls {folder})"),
        _ => "another path (list: ls)".into(),
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    fn error(path: impl Into<PathBuf>) -> String {
        read(&path.into()).unwrap_err().to_string()
    }

    #[test]
    fn what_is_no_regular_file_is_named() {
        let folder = tempfile::tempdir().unwrap();
        assert!(error(folder.path().join("none.json")).ends_with("none.json: no such file"));
        assert!(error(folder.path()).ends_with("is a directory"));
        assert!(error("nul\0.json").contains("cannot be read"));
    }

    #[cfg(unix)]
    #[test]
    fn pipes_and_devices_do_not_hang() {
        use std::process::Command;
        let folder = tempfile::tempdir().unwrap();
        let pipe = folder.path().join("pipe");
        assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        assert!(error(pipe).contains("is a pipe or a device"));
        assert!(error("/dev/zero").contains("is a pipe or a device"));
    }

    #[test]
    fn large_files_are_refused_by_their_size_alone() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("large.json");
        // A sparse file: it takes no space, and reading it would take a second.
        File::create(&path).unwrap().set_len(MAX_BYTES + 100_000).unwrap();
        assert!(error(path).ends_with("large.json: has 256.1 MB, more than the 256 MB that are read"));
    }
}
