"""Checks what `make wheels` built: names, the oldest glibc that each wheel runs on, and what the archives contain.

python scripts/check_wheels.py dist
"""

from __future__ import annotations

import configparser
import email.parser
import json
import re
import sys
import tarfile
import zipfile
from pathlib import Path

OLDEST_GLIBC = (2, 17)
MACHINES = {"x86_64": 62, "aarch64": 183}  # e_machine of an ELF file
LICENSES = ("LICENSE", "LICENSE-THIRD-PARTY.txt")
IN_SOURCE = (
    *("Cargo.lock", "Cargo.toml", "README.md", "pyproject.toml", "Makefile", "CHANGELOG.md", *LICENSES),
    *("crates/paceline-py/src/lib.rs", "scripts/build/checked_maturin.py", "scripts/third_party.py"),
    *("tests/conftest.py", "docs/conf.py", "examples/ddp.py"),
)
WANTED = ("paceline/_core.abi3.so", "paceline/_core.pyi", "paceline/py.typed", "paceline/catalog/traces/resnet-50.json")


def main() -> None:
    """Exit with 1 if anything is wrong."""
    folder = Path(sys.argv[1])
    wheels, archives = sorted(folder.glob("*.whl")), sorted(folder.glob("*.tar.gz"))
    if not wheels or len(archives) != 1:
        sys.exit(f"{folder}: {len(wheels)} wheels and {len(archives)} source distributions")
    version = check_source(archives[0])
    for wheel in wheels:
        check_wheel(wheel, version)


def check_source(path: Path) -> str:
    """Its version. It must contain what a build needs and nothing that was built."""
    with tarfile.open(path) as archive:
        names = archive.getnames()
        result = archive.extractfile(f"{names[0].split('/')[0]}/PKG-INFO")
        assert result is not None
        version = check_metadata(result.read().decode(), path)
    inside = {name.split("/", 1)[1] for name in names if "/" in name}
    for name in IN_SOURCE:
        assert name in inside, f"{path}: {name} is missing"
    assert not [name for name in inside if name.endswith((".so", ".pyc"))], path
    print(f"{path.name}: {len(inside)} files, {path.stat().st_size / 1e6:.1f} MB")
    return version


def check_metadata(text: str, path: Path) -> str:
    """What an index and pip show; the version."""
    metadata = email.parser.Parser().parsestr(text)
    assert metadata["Name"] == "paceline" and metadata["Requires-Python"] == ">=3.11", path
    assert metadata["License-Expression"].startswith("Apache-2.0 AND ") and metadata.get_payload(), path
    assert metadata.get_all("License-File") == list(LICENSES), path
    assert len(metadata.get_all("Classifier", [])) > 5, path
    return str(metadata["Version"])


def check_wheel(path: Path, version: str) -> None:
    """One file for all Pythons, for an old glibc, with all of the package's data files."""
    name, platforms = path.stem.rsplit("-", 1)
    assert name == f"paceline-{version}-cp311-abi3", path
    architecture = platforms.split(".")[0].removeprefix("manylinux2014_")
    assert set(platforms.split(".")) == {f"manylinux2014_{architecture}", f"manylinux_2_17_{architecture}"}, path
    with zipfile.ZipFile(path) as archive:
        names = archive.namelist()
        assert not [name for name in WANTED if name not in names], f"{path}: some of {WANTED} are missing"
        folder = f"paceline-{version}.dist-info"
        check_metadata(archive.read(f"{folder}/METADATA").decode(), path)
        for name in LICENSES:
            assert archive.read(f"{folder}/licenses/{name}"), f"{path}: {name} is missing"
        bill = json.loads(archive.read(f"{folder}/sboms/paceline.cdx.json"))
        assert bill["metadata"]["component"]["version"] == version and len(bill["components"]) > 50, path
        scripts = configparser.ConfigParser()
        scripts.read_string(archive.read(f"{folder}/entry_points.txt").decode())
        assert scripts["console_scripts"]["paceline"] == "paceline.__main__:main", path
        library = archive.read("paceline/_core.abi3.so")
    for folder in (Path.home(), Path.cwd()):
        assert f"{folder}/".encode() not in library, f"{path}: contains the path {folder}"
    machine = int.from_bytes(library[18:20], "little")
    assert machine == MACHINES[architecture], f"{path}: is built for machine {machine}"
    needed = {tuple(map(int, result.split(b"."))) for result in re.findall(rb"GLIBC_([0-9]+(?:\.[0-9]+)+)\0", library)}
    assert needed and max(needed) <= OLDEST_GLIBC, f"{path}: needs glibc {max(needed)}"
    newest = ".".join(map(str, max(needed)))
    print(f"{path.name}: glibc {newest} or newer, {len(names)} files, {path.stat().st_size / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
