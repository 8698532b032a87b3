"""Coordinators under contention: training with a busy input pipeline, with as many ranks as cores, and twice as many.

Systems take turns: the policies of `--coordinator`, DDP over gloo, and Horovod where it is installed
(.venv-bench/horovod, as for benches/horovod). Tables show images/s of all ranks (median over rounds), the speed
relative to DDP with gloo (taken within each round), and the share of a core that a rank's coordinator and transport
threads use.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "peers"))

import document  # noqa: E402
import jobs  # noqa: E402
import show  # noqa: E402
import summary  # noqa: E402
import systems  # noqa: E402
from systems import System  # noqa: E402

DOCS = HERE.parents[1] / "docs" / "explanation" / "coordinator.md"
HOROVOD = HERE.parents[1] / ".venv-bench" / "horovod" / "bin"
POLICIES = ("negotiate", "global-sleep", "nonblocking", "partitioned", "graph")
HEADING = "## Under contention"
TEXT = """\
`python benches/coordinators/run.py --markdown`, {rounds} rounds, made in {made} on {cores} cores of an {cpu}:
ResNet-18, {batch} images of 64 px per rank, one thread per rank, and for each rank a process that decodes and augments
JPEG images. A rank and its loader contend for a core once there are as many ranks as cores. The configurations take
turns, each in a fresh job; a ratio is taken within each round (minimum and maximum in brackets)."""


def ways() -> list[str]:
    """In the order in which they take turns."""
    there = ["horovod"] if (HOROVOD / "horovodrun").exists() else []
    return ["gloo", *POLICIES, *there]


def one(way: str, ranks: int, words: list[str]) -> dict[str, float]:
    """Images/s of all ranks, and the coordinators' share of a core. Raises jobs.JobError."""
    name = f"contention, {way}"
    if way == "horovod":
        command = [str(HOROVOD / "horovodrun"), "-np", str(ranks), "--gloo", "-H", f"localhost:{ranks}"]
        command += [str(HOROVOD / "python"), str(HERE / "job.py"), way, *words]
        variables = {"PATH": f"{HOROVOD}:/usr/bin:/bin", "OMP_NUM_THREADS": "1"}
        reports = jobs.run_command(name, ranks, command, 600, variables)
    else:
        variables = {"OMP_NUM_THREADS": "1"}
        if way != "gloo":
            variables |= {"PACELINE_RENDEZVOUS": f"127.0.0.1:{systems._port()}"}
        job = System(name, way, str(HERE / "job.py"), "", variables=variables, arguments=(way,))
        reports = jobs.run(job, ranks, words, 600)
    return {
        "images_per_s": ranks * min(report["images_per_s"] for report in reports),
        "coordinator_cpu": statistics.mean(report["coordinator_cpu"] for report in reports),
    }


def measure(worlds: list[int], rounds: int, words: list[str], say: Callable[[str], None]) -> dict[str, Any]:
    """One measurement per round, by ranks and system; None where it failed."""
    found: dict[str, Any] = {str(ranks): {way: [] for way in ways()} for ranks in worlds}
    for number in range(rounds):
        turn = ways()
        for way in turn[number % len(turn) :] + turn[: number % len(turn)]:
            for ranks in worlds:
                try:
                    measured: dict[str, float] | None = one(way, ranks, words)
                except jobs.JobError as error:
                    print(f"failed: {error}", file=sys.stderr)
                    measured = None
                found[str(ranks)][way].append(measured)
                say(f"round {number + 1}/{rounds}: {way}, {ranks} ranks")
    return found


def table(ranks: str, found: dict[str, list[dict[str, float] | None]]) -> summary.Table:
    """A row for each way."""
    seconds = {way: [turn and 1 / turn["images_per_s"] for turn in turns] for way, turns in found.items()}
    rows = []
    for way, turns in found.items():
        known = [turn for turn in turns if turn is not None]
        if not known:
            rows.append([way, "failed", "–", "–"])
            continue
        rows.append(
            [
                "DDP, gloo" if way == "gloo" else "Horovod 0.28.1" if way == "horovod" else way,
                f"{statistics.median(turn['images_per_s'] for turn in known):.1f}",
                str(summary.faster(seconds["gloo"], seconds[way]) or "–"),
                f"{100 * statistics.median(turn['coordinator_cpu'] for turn in known):.1f} %",
            ]
        )
    title = f"{ranks} ranks, each with a loader"
    return summary.Table(
        title, ["coordinator", "images/s", "times as fast as DDP with gloo", "core use per rank"], rows
    )


def main() -> None:
    """Measure and show."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--json", type=Path, help="save the results to this file")
    parser.add_argument("--from", dest="source", type=Path, help="show the results saved in this file")
    parser.add_argument("--markdown", nargs="?", type=Path, const=DOCS, help="write the section into this document")
    options = parser.parse_args()
    if options.source:
        content: dict[str, Any] = json.loads(options.source.read_text())
    else:
        cores = len(os.sched_getaffinity(0))
        words = ["--steps", str(options.steps), "--batch", str(options.batch)]
        with show.progress() as say:
            worlds = measure([cores, 2 * cores], options.rounds, words, say)
        content = {"worlds": worlds, "rounds": options.rounds, "batch": options.batch, "machine": document.machine()}
        if options.json:
            options.json.write_text(json.dumps(content, indent=1) + "\n")
    tables = [table(ranks, found) for ranks, found in content["worlds"].items()]
    for one_table in tables:
        show.table(one_table)
    if options.markdown:
        text = TEXT.format(rounds=content["rounds"], batch=content["batch"], **content["machine"])
        section = "\n\n".join([HEADING, text, *(one_table.markdown() for one_table in tables)]) + "\n"
        options.markdown.write_text(document.replaced(options.markdown.read_text(), section, HEADING))


if __name__ == "__main__":
    main()
