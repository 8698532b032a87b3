"""Horovod's calls: training in turns with DDP over gloo, over paceline and with Horovod itself where it is installed.

Horovod is looked for in .venv-bench/horovod (docs/results/benchmarks.md says how that was made). Also measured: what
`hvd.init()` costs a training that does nothing else with it, what a timeline costs, and the time of small all-reduces.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
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

DOCS = HERE.parents[1] / "docs" / "results" / "benchmarks.md"
HOROVOD = HERE.parents[1] / ".venv-bench" / "horovod" / "bin"
TITLES = {
    "gloo": "DDP, gloo",
    "paceline": "DDP, paceline",
    "hvd": "DistributedOptimizer",
    "horovod": "Horovod 0.28.1",
    "alone": "no communication",
}
MODELS = {"mlp": "MLP, 100 MB, 4 samples a rank", "resnet18": "ResNet-18, 16 images of 64 px a rank"}
BLOCKS = 16  # of both kinds in a job
PARTS = (*MODELS, "reductions", "costs")
HEADING = "## Horovod's API"
TEXT = """\
`python benches/horovod/run.py` (part of `make bench`), {rounds} rounds, two ranks of one thread each, measured in
{made} on {cores} cores of an {cpu}. The engines take turns, each in a fresh job; a ratio is taken within each round
(minimum and maximum in brackets)."""


def one(way: str, what: str, steps: int) -> list[Any]:
    """What the two ranks report. Raises jobs.JobError."""
    with tempfile.TemporaryDirectory() as folder:
        rendezvous = f"127.0.0.1:{systems._port()}"
        variables = {"PACELINE_RENDEZVOUS": rendezvous} if way in ("hvd", "timeline", "init") else {}
        if way == "timeline":
            variables["BENCH_TIMELINE"] = f"{folder}/timeline.json"
        words = ("--steps", str(steps))
        job = System(f"{what}, {way}", way, str(HERE / "job.py"), "", variables=variables, arguments=(way, what))
        if way != "horovod":
            return jobs.run(job, 2, list(words), 300)
        return jobs.run_command(
            job.name,
            2,
            [
                *(str(HOROVOD / "horovodrun"), "-np", "2", "--gloo", "-H", "localhost:2"),
                *(str(HOROVOD / "python"), str(HERE / "job.py"), way, what, *words),
            ],
            300,
            {"PATH": f"{HOROVOD}:/usr/bin:/bin", "OMP_NUM_THREADS": "1"},
        )


def ways(what: str) -> list[str]:
    """In the order in which they take turns."""
    there = ["horovod"] if (HOROVOD / "horovodrun").exists() else []
    if what == "reductions":
        return ["hvd", *there]
    if what == "costs":
        return ["timeline", "init"]
    return ["gloo", "hvd", "paceline", *there, "alone"]


def measure(parts: list[str], rounds: int, steps: int, content: dict[str, Any], say: Callable[[str], None]) -> None:
    """Seconds of a step by model and way, and of a reduction by size and way; one for each round."""
    for what in parts:
        found: dict[str, list[Any]] = {way: [] for way in ways(what)}
        for number in range(rounds):
            turn = ways(what)
            for way in turn[number % len(turn) :] + turn[: number % len(turn)]:
                try:
                    reports = one(way, what, BLOCKS if what == "costs" else steps)
                except jobs.JobError as error:
                    print(f"failed: {error}", file=sys.stderr)
                    found[way].append(None)
                    continue
                if what == "reductions":
                    found[way].append(
                        {size: max(r["median_s"][size] for r in reports) for size in reports[0]["median_s"]}
                    )
                elif what == "costs":
                    pairs = [pair for report in reports for pair in report["pairs"]]
                    found[way].append(statistics.median(having / without for having, without in pairs))
                else:
                    found[way].append(summary.slowest([report["seconds"] for report in reports]))
                say(f"{what}, round {number + 1}/{rounds}: {way}")
        content[what] = found


def tables(content: dict[str, Any]) -> list[summary.Table]:
    """Training, costs, reductions."""
    training, costs = [], []
    for model, title in MODELS.items():
        times = content[model]
        for way in (way for way in ("paceline", "hvd", "horovod", "alone") if way in times):
            ours = summary.middle(times[way])
            row = [title, TITLES[way], f"{ours * 1e3:.0f}" if ours else "–"]
            row.append(str(summary.faster(times["gloo"], times[way]) or "–"))
            row.append(
                str(
                    (way in ("paceline", "hvd") and "horovod" in times and summary.faster(times["horovod"], times[way]))
                    or "–"
                )
            )
            training.append(row)
    for what, way in (("training after hvd.init() without using it", "init"), ("recording a timeline", "timeline")):
        ratios = [ratio for ratio in content["costs"][way] if ratio is not None]
        spread = f"{statistics.median(ratios):.3f} ({min(ratios):.3f}–{max(ratios):.3f})" if ratios else "–"
        costs.append([what, spread, "at most 1.01"])
    sizes = []
    for size in content["reductions"]["hvd"][0]:
        rounds = {way: [turn and turn[size] for turn in turns] for way, turns in content["reductions"].items()}
        row = [summary.size_text(int(size)), summary.microseconds(summary.middle(rounds["hvd"]))]
        if "horovod" in rounds:
            row += [
                summary.microseconds(summary.middle(rounds["horovod"])),
                str(summary.faster(rounds["horovod"], rounds["hvd"])),
            ]
        sizes.append(row)
    header = ["size", "paceline, us", *(["Horovod, us", "times as fast"] if len(sizes[0]) > 2 else [])]
    return [
        summary.Table(
            "Training",
            ["model", "engine", "ms a step", "times as fast as DDP with gloo", "times as fast as Horovod"],
            training,
        ),
        summary.Table(
            "Overhead on ResNet-18: time of a step with the feature divided by the time without it, alternating every "
            "three steps of the same job",
            ["", "ratio", "target"],
            costs,
        ),
        summary.Table("A named all-reduce that the caller waits for at once, 2 ranks", header, sizes),
    ]


def main() -> None:
    """Measure and show."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--part", choices=PARTS, help="measure this alone; --from has the others")
    parser.add_argument("--json", type=Path, help="keep the numbers here")
    parser.add_argument("--from", dest="source", type=Path, help="show the numbers kept there")
    parser.add_argument("--markdown", nargs="?", type=Path, const=DOCS, help="write into this document")
    options = parser.parse_args()
    content: dict[str, Any] = json.loads(options.source.read_text()) if options.source else {}
    if options.part and not options.source:
        parser.error("--part needs --from FILE, with the other parts")
    if not options.source or options.part:
        content |= {"machine": document.machine(), "rounds": options.rounds}
        with show.progress() as say:
            measure([options.part] if options.part else list(PARTS), options.rounds, options.steps, content, say)
        if options.json:
            options.json.write_text(json.dumps(content, indent=1) + "\n")
    for table in tables(content):
        show.table(table)
    if options.markdown:
        text = TEXT.format(rounds=content["rounds"], **content["machine"])
        section = "\n\n".join([HEADING, text, *(table.markdown() for table in tables(content))]) + "\n"
        options.markdown.write_text(document.replaced(options.markdown.read_text(), section, HEADING))


if __name__ == "__main__":
    main()
