//! Writes the Rust code of the gRPC service from its description: `cargo run -p paceline-protobuf`; with `--check` says
//! whether what is there is what would be written (exit code 1 if not).
use std::error::Error;
use std::path::Path;
use std::process::ExitCode;
use std::{env, fs};

const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../grpc/src");
const DESCRIPTION: &str = "rank.proto";
const CODE: &str = "generated.rs";
/// The generator's name for the package's code.
const WRITTEN: &str = "paceline.v1.rs";

fn generate() -> Result<String, Box<dyn Error>> {
    let files = protox::compile([Path::new(FOLDER).join(DESCRIPTION)], [FOLDER])?;
    let folder = env::temp_dir().join(format!("paceline-protobuf-{}", std::process::id()));
    fs::create_dir_all(&folder)?;
    // Payloads are shared with the buffer they came in, not copied out of it.
    let written = tonic_prost_build::configure()
        .bytes(".paceline.v1.Fragment.payload")
        .build_transport(false)
        .out_dir(&folder)
        .compile_fds(files)
        .and_then(|()| fs::read_to_string(folder.join(WRITTEN)));
    fs::remove_dir_all(&folder)?;
    Ok(written?)
}

fn main() -> Result<ExitCode, Box<dyn Error>> {
    let (code, path) = (generate()?, Path::new(FOLDER).join(CODE));
    if env::args().nth(1).as_deref() != Some("--check") {
        fs::write(path, code)?;
    } else if fs::read_to_string(path)? != code {
        eprintln!("{CODE} is not what {DESCRIPTION} says; run: cargo run -p paceline-protobuf");
        return Ok(ExitCode::FAILURE);
    }
    Ok(ExitCode::SUCCESS)
}
