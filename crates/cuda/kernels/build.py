"""Compiles combine.cu to combine.ptx.zlib: compressed PTX, which the driver compiles for its device, by `make kernels`.

NVRTC needs no device, and is the one that pyproject.toml pins: an old one, because PTX runs with drivers from then on.
`--check` compares with what is checked in, and exits with 1 if that differs.
"""

import argparse
import ctypes
import difflib
import hashlib
import importlib.metadata
import re
import sys
import tomllib
import zlib
from pathlib import Path

HERE = Path(__file__).parent
SOURCE = HERE / "combine.cu"
PTX = HERE / "combine.ptx.zlib"
PROJECT = HERE.parents[2] / "pyproject.toml"
# The oldest devices with `__grid_constant__`. `--fmad=false`: a product and a sum are rounded each.
OPTIONS = ["--gpu-architecture=compute_70", "--std=c++14", "--fmad=false"]


class NotInstalled(Exception):
    """The pinned NVRTC is not installed."""


def source_hash() -> str:
    """The sha256 of the source, in hexadecimal."""
    return hashlib.sha256(SOURCE.read_bytes()).hexdigest()


def checked_in() -> str:
    """The PTX that is checked in."""
    return zlib.decompress(PTX.read_bytes()).decode()


def recorded_hash() -> str:
    """The sha256 in the first line of the PTX that is checked in."""
    first = checked_in().partition("\n")[0]
    found = re.search(r"sha256 ([0-9a-f]{64})", first)
    return found[1] if found else ""


def pinned() -> tuple[str, str]:
    """The package of NVRTC and its version, as the group `kernels` of pyproject.toml says."""
    (requirement,) = tomllib.loads(PROJECT.read_text())["dependency-groups"]["kernels"]
    name, _, version = requirement.partition("==")
    return name, version


def library() -> Path:
    """NVRTC of the pinned package.

    Raises:
        NotInstalled: it is not there, or of another version.
    """
    name, version = pinned()
    try:
        package = importlib.metadata.distribution(name)
    except importlib.metadata.PackageNotFoundError:
        raise NotInstalled(f"{name}=={version} is not installed; `make kernels` does it") from None
    if package.version != version:
        raise NotInstalled(f"{name} is {package.version} here, and pyproject.toml pins {version}; `make kernels`")
    for file in package.files or ():
        if re.fullmatch(r"libnvrtc\.so\.[\d.]+", file.name):
            return Path(str(package.locate_file(file)))
    raise NotInstalled(f"{name}=={version} holds no libnvrtc.so")


def compiled(path: Path) -> str:
    """The PTX of combine.cu, with a first line that says what it was made from and with.

    Args:
        path: NVRTC's library.

    Raises:
        RuntimeError: the source is wrong; the message is NVRTC's log.
    """
    nvrtc = ctypes.CDLL(str(path))
    program = ctypes.c_void_p()
    source = SOURCE.read_bytes()
    options = (ctypes.c_char_p * len(OPTIONS))(*(option.encode() for option in OPTIONS))

    def text(what: str) -> str:
        size = ctypes.c_size_t()
        getattr(nvrtc, f"nvrtcGet{what}Size")(program, ctypes.byref(size))
        buffer = ctypes.create_string_buffer(size.value)
        getattr(nvrtc, f"nvrtcGet{what}")(program, buffer)
        return buffer.value.decode()

    made = nvrtc.nvrtcCreateProgram(ctypes.byref(program), source, b"combine.cu", 0, None, None)
    if made != 0:
        raise RuntimeError(f"nvrtcCreateProgram failed with {made}")
    if nvrtc.nvrtcCompileProgram(program, len(OPTIONS), options) != 0:
        raise RuntimeError(text("ProgramLog"))
    ptx = text("PTX")
    nvrtc.nvrtcDestroyProgram(ctypes.byref(program))
    release = re.search(r"V(\d+\.\d+\.\d+)", ptx)
    version = release[1] if release else "unknown"
    return f"// combine.cu sha256 {hashlib.sha256(source).hexdigest()}, NVRTC {version}\n{ptx.rstrip()}\n"


def main() -> int:
    """Compiles, or compares."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="compare with the PTX that is checked in")
    parser.add_argument("--library", type=Path, help="NVRTC, in place of the pinned package's")
    given = parser.parse_args()
    try:
        ptx = compiled(given.library or library())
    except (NotInstalled, RuntimeError) as error:
        print(error, file=sys.stderr)
        return 1
    if not given.check:
        PTX.write_bytes(zlib.compress(ptx.encode(), 9))
        return 0
    old = checked_in() if PTX.exists() else ""
    if ptx == old:
        return 0
    lines = list(
        difflib.unified_diff(old.splitlines(), ptx.splitlines(), "checked in", "compiled now", lineterm="", n=0)
    )
    print(f"{PTX.name} is not what {SOURCE.name} compiles to ({len(lines)} lines of difference); run `make kernels`:")
    print("\n".join(lines[:10]))
    return 1


if __name__ == "__main__":
    sys.exit(main())
