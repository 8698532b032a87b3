"""What a build needs and says without it, and what a wheel says of the code in it."""

import json
import os
import re
import shutil
import sys
import tomllib
from pathlib import Path

import cli
import pytest

ROOT = Path(__file__).parent.parent
BACKEND = ROOT / "scripts/build/checked_maturin.py"
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
LOCK = tomllib.loads((ROOT / "Cargo.lock").read_text(encoding="utf-8"))["package"]
OLDEST = tomllib.loads((ROOT / "Cargo.toml").read_text(encoding="utf-8"))["workspace"]["package"]["rust-version"]


def programs(folder, **scripts):
    """A folder with these programs, each a line of shell."""
    folder.mkdir()
    for name, line in scripts.items():
        (folder / name).write_text(f"#!/bin/sh\n{line}\n")
        (folder / name).chmod(0o755)
    return {**os.environ, "PATH": str(folder), "RUSTC": ""}


def build(environ, *words):
    environ = {name: value for name, value in environ.items() if name != "RUSTC"}
    return cli.ended(sys.executable, *words, env=environ, cwd=ROOT)


OLD = {"cargo": "echo 'cargo 1.70.0 (7fe40dc8c 2023-04-27)'", "rustc": "echo 'rustc 1.70.0 (90c541806 2023-05-31)'"}
NO_TOOLCHAIN = dict.fromkeys(("cargo", "rustc"), "echo 'error: rustup could not choose a version' >&2; exit 1")


@pytest.mark.parametrize(
    ("scripts", "said"),
    [
        ({}, "cargo is missing"),
        ({"cargo": "echo cargo 1.90.0"}, "rustc is missing"),
        (OLD, "this is rustc 1.70.0 (90c541806 2023-05-31): rustup update, or"),
        (NO_TOOLCHAIN, "rustc --version fails (error: rustup could not choose a version)"),
    ],
    ids=["no-cargo", "no-rustc", "old", "no-toolchain"],
)
def test_a_build_without_rust_says_what_it_needs(scripts, said, tmp_path):
    """In one line, for `make` and for `pip install .`, which calls the hook."""
    environ = programs(tmp_path / "bin", **scripts)
    hook = f"import sys; sys.path.insert(0, {str(BACKEND.parent)!r}); import checked_maturin as backend; backend."
    for words, code in (([BACKEND], 77), (["-c", f"{hook}get_requires_for_build_wheel({{}})"], 1)):
        done = build(environ, *words)
        assert done.returncode == code
        (line,) = done.stderr.splitlines()
        assert line.startswith(f"Paceline needs Rust {OLDEST} or newer to be compiled, and ")
        assert said in line and "https://rustup.rs" in line


def test_new_enough_rust_is_enough(tmp_path):
    environ = programs(tmp_path / "bin", cargo="echo", rustc=f"echo 'rustc {OLDEST}.0 (0123456789 2025-06-23)'")
    done = build(environ, BACKEND)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("sys.version_info = (3, 10, 4)", "needs CPython 3.11 or newer; this is cpython 3.10.4"),
        ("sys.implementation.name = 'pypy'", "needs CPython 3.11 or newer; this is pypy"),
        ("sysconfig.get_config_var = lambda name: 1", "free-threaded"),
    ],
)
def test_another_python_is_told_so(change, said):
    code = (
        f"import sys, sysconfig; {change}; sys.path.insert(0, {str(BACKEND.parent)!r}); import checked_maturin as b; "
    )
    done = build(os.environ, "-c", f"{code}b.get_requires_for_build_wheel()")
    assert done.returncode == 1 and said in done.stderr.splitlines()[-1]


def test_the_other_hooks_are_maturins():
    pytest.importorskip("maturin")
    code = f"import sys; sys.path.insert(0, {str(BACKEND.parent)!r}); import checked_maturin as b, maturin as m; "
    hooks = ("build_wheel", "build_sdist", "build_editable", "prepare_metadata_for_build_wheel")
    done = build(os.environ, "-c", f"{code}print([getattr(b, name) is getattr(m, name) for name in {hooks}])")
    assert done.stdout == f"{[True] * len(hooks)}\n", done.stderr


@pytest.mark.skipif(shutil.which("cargo") is None, reason="cargo says what is linked")
def test_every_linked_crate_is_listed():
    """And its notice is carried: the files are what the script would write."""
    done = build(os.environ, ROOT / "scripts/third_party.py", "--check")
    assert done.returncode == 0, done.stderr
    assert f"license = {PYPROJECT['project']['license']!r}" in done.stdout


def test_the_bill_and_the_notices_list_the_same_crates():
    notices = (ROOT / "LICENSE-THIRD-PARTY.txt").read_text(encoding="utf-8")
    listed = set(re.findall(r"^(\S+ \d+\.\d+\.\d+\S*) +\S", notices.split("=" * 78)[0], re.MULTILINE))
    (path,) = PYPROJECT["tool"]["maturin"]["sbom"]["include"]
    bill = json.loads((ROOT / path).read_text(encoding="utf-8"))
    assert listed == {f"{one['name']} {one['version']}" for one in bill["components"]} and len(listed) > 50
    locked = {(one["name"], one["version"]): one.get("checksum") for one in LOCK}
    for one in bill["components"]:
        assert one["hashes"][0]["content"] == locked[one["name"], one["version"]]
    references = {one["bom-ref"] for one in [bill["metadata"]["component"], *bill["components"]]}
    assert {one["ref"] for one in bill["dependencies"]} == references
    assert all(set(one["dependsOn"]) <= references for one in bill["dependencies"])
    assert bill["metadata"]["component"]["licenses"] == [{"expression": PYPROJECT["project"]["license"]}]
    # Nothing that differs from build to build.
    assert "serialNumber" not in bill and "timestamp" not in bill["metadata"]


def test_notices_of_licenses_that_want_them():
    """MIT, ISC and BSD want their text beside the binary; LICENSE has Apache's."""
    notices = (ROOT / "LICENSE-THIRD-PARTY.txt").read_text(encoding="utf-8")
    table, *texts = notices.split("=" * 78 + "\n")
    rows = dict(re.findall(r"^(\S+ \d\S*) +(\S.*)$", table, re.MULTILINE))
    wanting = {name for name, license_ in rows.items() if license_ != "Apache-2.0"}
    covered = {name for text in texts for name in text.splitlines()[0].split(", ")}
    assert len(wanting) > 20 and wanting <= covered
    assert set(PYPROJECT["project"]["license-files"]) == {"LICENSE", "LICENSE-THIRD-PARTY.txt"}
