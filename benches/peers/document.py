"""The section of docs/results/benchmarks.md, from the numbers of a run."""

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
and `--markdown` writes this section. Made in {made} on {cores} cores of an {cpu}, Linux {kernel}:
{versions}.
The MPIs are wheels from PyPI in environments of their own (`.venv-bench`), started by their own launchers.

Systems take turns ({rounds} rounds, in each the next one begins), every turn a fresh job of some seconds, because the
waiting ranks of an MPI keep their cores busy. In a job each size is checked once, warmed up, and called again and again
for {seconds} s in batches of a millisecond; a time is the median over batches of the slowest rank, then the median over
rounds. A ratio is taken within each round (least and greatest in brackets), so that what slows the machine for a minute
slows both. Buffers are numpy's, float32, summed in place; the MPIs are called by mpi4py's `Allreduce`, ours by
`Communicator.all_reduce`.

The *limit* is the least time at the machine's copy rate, which is measured in the same rounds at the same working set:
summing n buffers of S bytes so that a rank stores into its own memory alone takes (2n - 1) S loads and n S stores, a
copy one load and one store per byte; so (3n - 1) S / (2 c r) with c cores that copy r bytes per second each
(`benches/peers/limits.py`). Below some 256 KiB the time goes not into bytes but into one core's waiting for another.

The peers are at their defaults, which nothing here cripples: Open MPI takes `ob1` over `sm` with single copies by
`process_vm_readv` (`smsc/cma`) and binds ranks to cores; MPICH copies likewise (without that both are 1.5 to 2 times
slower from 4 MiB on). *TCP* is `--mca pml ob1 --mca btl tcp,self`. Two settings beat the defaults at small sizes and
are shown beside them: Open MPI on UCX (`--mca pml ucx --mca opal_common_ucx_tls any --mca opal_common_ucx_devices
any`), and MPICH without thread support (`mpi4py.rc.thread_level = "single"`), which is slower from 64 KiB on and makes
no headway with more ranks than cores. gloo and paceline run with `OMP_NUM_THREADS=1`, as under torchrun.

Before each round other work kept {busy} of the cores' time busy."""


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
    """All that were measured."""
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
    """Put the section in the place of the last one, or at the end; the other sections stay."""
    path.write_text(replaced(path.read_text(), section(content)))


def replaced(text: str, new: str, heading: str = HEADING) -> str:
    """`text` with the section of the same heading replaced."""
    lines = text.splitlines(keepends=True)
    start = next((at for at, line in enumerate(lines) if line.rstrip() == heading), None)
    if start is None:
        return text.rstrip("\n") + "\n\n" + new
    end = next((at for at in range(start + 1, len(lines)) if lines[at].startswith("## ")), len(lines))
    return "".join(lines[:start]) + new + ("\n" if end < len(lines) else "") + "".join(lines[end:])
