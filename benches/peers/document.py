"""The section of docs/results/benchmarks.md, from the results of a run."""

from __future__ import annotations

import platform
import statistics
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import allreduce
import idle
import summary
import systems
import targets
import training

HEADING = "## The runtime against its peers"
IMAGE = "images/peers.png"
TEXT = """\
`python benches/peers/run.py` measures all of this side by side (part of `make bench`; `--quick` takes four minutes),
and `--markdown` writes this section. Measured in {made} on {cores} cores of an {cpu}, Linux {kernel}:
{versions}.
The MPI libraries are wheels from PyPI in separate environments (`.venv-bench`), started by their own launchers.

Systems take turns ({rounds} rounds, each starting with the next system). Every turn is a fresh job of a few seconds,
because waiting MPI ranks keep their cores busy. In a job, each size is checked once, warmed up, and called repeatedly
for {seconds} s in batches of a millisecond; a time is the median over batches of the slowest rank, then the median over
rounds. A ratio is taken within each round (minimum and maximum in brackets), so that anything that slows the machine
for a minute affects both. Buffers are numpy arrays of float32, summed in place; the MPI libraries are called through
mpi4py's `Allreduce`, Paceline through `Communicator.all_reduce`.

The *limit* is the shortest possible time at the machine's copy rate, which is measured in the same rounds with the same
working set. Summing n buffers of S bytes, with each rank storing only into its own memory, takes (2n - 1) S loads and
n S stores; a copy takes one load and one store per byte. The limit is therefore (3n - 1) S / (2 c r) with c cores that
each copy r bytes per second (`benches/peers/limits.py`). Below about 256 KiB the time is spent not on bytes but on one
core waiting for another. On TCP the limit is the time in which as many processes send each other an all-reduce's bytes
over loopback and add nothing, measured in the same rounds.

The peers use their defaults, and nothing here restricts them: Open MPI uses `ob1` over `sm` with single copies by
`process_vm_readv` (`smsc/cma`) and binds ranks to cores; MPICH copies in the same way (without single copies both are
1.5 to 2 times slower from 4 MiB on). *TCP* is `--mca pml ob1 --mca btl tcp,self`. Two settings beat the defaults at
small sizes and are shown as well: Open MPI on UCX (`--mca pml ucx --mca opal_common_ucx_tls any --mca
opal_common_ucx_devices any`), and MPICH without thread support (`mpi4py.rc.thread_level = "single"`), which is slower
from 64 KiB on and makes no progress with more ranks than cores. gloo and paceline run with `OMP_NUM_THREADS=1`, as
under torchrun.

Before each round, other work used {busy} of the cores' time."""


def machine() -> dict[str, Any]:
    """Where and when."""
    names = {
        line.split(":", 1)[1].strip()
        for line in Path("/proc/cpuinfo").read_text().splitlines()
        if line.startswith("model name")
    }
    return {
        "made": datetime.now(UTC).strftime("%B %Y"),
        "cpu": " ".join(sorted(names)).replace("(R)", ""),
        "cores": systems.cores(),
        "kernel": platform.release().split("-")[0],
    }


def tables(content: dict[str, Any]) -> list[summary.Table]:
    """All systems that were measured."""
    result = allreduce.tables(content.get("all_reduce", {}))
    if content.get("training"):
        result.append(training.table(content["training"]))
    if content.get("idle"):
        result.append(idle.table(content["idle"]))
    verdicts = targets.table(content)
    return [*result, verdicts] if verdicts.rows else result


def section(content: dict[str, Any]) -> str:
    """The Markdown, from its heading on."""
    abouts = {about for measured in content.get("all_reduce", {}).values() for about in measured["about"].values()}
    busy = [share for measured in content.get("all_reduce", {}).values() for share in measured["busy"]]
    known = {
        "versions": ", ".join(sorted(abouts)),
        "rounds": content.get("rounds", "no"),
        "seconds": content.get("seconds", 0),
        "busy": f"{100 * statistics.median(busy):.0f} % (at most {100 * max(busy):.0f} %)" if busy else "0 %",
    }
    text = TEXT.format(**content["machine"], **known)
    blocks = [HEADING, text, *(table.markdown() for table in tables(content))]
    if "all_reduce" in content:
        blocks.append(f"![Time and bus bandwidth of all-reduce by size]({IMAGE})")
    return "\n\n".join(blocks) + "\n"


def write(content: dict[str, Any], path: Path) -> None:
    """Replace the previous version of the section, or append it; other sections stay."""
    path.write_text(replaced(path.read_text(), section(content)))


def replaced(text: str, new: str, heading: str = HEADING) -> str:
    """`text` with the section under the same heading replaced."""
    lines = text.splitlines(keepends=True)
    start = next((at for at, line in enumerate(lines) if line.rstrip() == heading), None)
    if start is None:
        return text.rstrip("\n") + "\n\n" + new
    end = next((at for at in range(start + 1, len(lines)) if lines[at].startswith("## ")), len(lines))
    return "".join(lines[:start]) + new + ("\n" if end < len(lines) else "") + "".join(lines[end:])
