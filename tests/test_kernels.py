"""The CUDA kernels: the PTX that is checked in is what its source compiles to."""

import importlib.util
import re
import sys
from pathlib import Path

import cli
import pytest

pytestmark = pytest.mark.process

BUILD = Path(__file__).parents[1] / "crates/cuda/kernels/build.py"
spec = importlib.util.spec_from_file_location("kernels_build", BUILD)
build = importlib.util.module_from_spec(spec)
spec.loader.exec_module(build)

OPS = ["sum", "min", "max", "product"]
TYPES = ["f32", "f64", "f16", "bf16", "i32", "i64", "u8"]


def test_the_ptx_is_of_this_source():
    assert build.recorded_hash() == build.source_hash(), "combine.cu has changed since: run `make kernels`"


def test_there_is_a_kernel_for_each_operation_and_type():
    kernels = re.findall(r"\.visible \.entry (\w+)\(", build.checked_in())
    assert sorted(kernels) == sorted(f"combine_{op}_{dtype}" for op in OPS for dtype in TYPES)


def test_the_oldest_driver_takes_the_ptx():
    # CUDA 11.7, which crates/cuda/src/abi.rs asks for, knows PTX up to 7.7.
    assert re.search(r"^\.version 7\.7$", build.checked_in(), re.MULTILINE)


def test_the_source_compiles_to_the_ptx():
    try:
        build.library()
    except build.NotInstalled as error:
        pytest.skip(str(error))
    done = cli.ended(sys.executable, BUILD, "--check")
    assert done.returncode == 0, done.stdout + done.stderr
