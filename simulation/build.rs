//! Lists the branches that the runtime counts with `reached!`, so that a search can say which ones it has not taken.
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

fn main() -> std::io::Result<()> {
    let crates = Path::new("../crates");
    println!("cargo::rerun-if-changed={}", crates.display());
    let mut names = BTreeSet::new();
    look(crates, &mut names)?;
    let out = PathBuf::from(std::env::var_os("OUT_DIR").expect("cargo sets it")).join("branches.rs");
    std::fs::write(out, format!("&{:?}", names.iter().collect::<Vec<_>>()))
}

fn look(folder: &Path, names: &mut BTreeSet<String>) -> std::io::Result<()> {
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            look(&path, names)?;
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let text = std::fs::read_to_string(&path)?;
            let after = text.split("reached!(\"").skip(1);
            names.extend(after.filter_map(|rest| rest.split_once('"')).map(|(name, _)| name.to_owned()));
        }
    }
    Ok(())
}
