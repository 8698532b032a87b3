"""NCCL's collectives as nccl-tests prints them, and their plot."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from pathlib import Path

from paceline._internal import units
from paceline._internal.console import Column, render
from paceline._internal.files import check_writable, replaced
from paceline.catalog.nccl import Kind
from paceline.errors import InvalidArgumentError
from paceline.forecast.nccl.request import Answer, evidence

NAMES: dict[Kind, str] = {
    "allreduce": "all-reduce",
    "allgather": "all-gather",
    "reducescatter": "reduce-scatter",
    "broadcast": "broadcast",
    "reduce": "reduce",
}
_SUFFIXES = (".png", ".svg", ".pdf")


def table(answers: Sequence[Answer]) -> list[str]:
    """Return a table for each answer with nccl-tests' columns, as lines."""
    columns = [Column("size\nB"), Column("time\nus"), Column("algbw\nGB/s"), Column("busbw\nGB/s")]
    columns += [Column("algorithm", left=True), Column("protocol", left=True)]
    lines: list[str] = []
    for answer in answers:
        rows = [
            [
                str(it.size),
                units.digits(it.seconds * 1e6),
                f"{it.algorithm_bandwidth / 1e9:.2f}",
                f"{it.bus_bandwidth / 1e9:.2f}",
                it.algorithm,
                it.protocol,
            ]
            for it in answer.times
        ]
        lines += [*([""] if lines else []), title(answer), "", *render(columns, [rows], highlight_first=False)]
    return lines


def title(answer: Answer) -> str:
    """Return what an answer is about, in a line."""
    group, machine = answer.group, answer.machine
    between = ""
    if group.nodes > 1:
        nics = f", {units.count(machine.nics, 'NIC')} a node" if machine.nics > 1 else ""
        between = f", {units.rate(8 * machine.nominal)}{nics}"
    return (
        f"NCCL's {NAMES[answer.kind]} on {answer.cluster}: {units.count(group.ranks, 'GPU')} on "
        f"{units.count(group.nodes, 'node')}{between}, as nccl-tests times it"
    )


def notes(answers: Sequence[Answer]) -> list[str]:
    """Return what was assumed, and where NCCL's own model would choose otherwise."""
    found = dict.fromkeys(f"assumed: {one}" for answer in answers for one in answer.machine.assumed)
    pairs = [(it, it.tuning) for answer in answers if answer.group.nodes > 1 for it in answer.times]
    other = [(it, own) for it, own in pairs if own and (own.algorithm, own.protocol) != (it.algorithm, it.protocol)]
    if other:
        it, own = other[-1]
        note = (
            f"in {units.count(len(other), 'row')}, NCCL's own model would choose otherwise, for {units.size(it.size)} "
            f"and {it.group.ranks} GPUs {own.algorithm} with {own.protocol} ({units.duration(own.seconds)}); between "
            "nodes that model is 2 to 3 times too fast for all but rings with Simple, so these rows are as calibrated"
        )
        found[note] = None
    found |= dict.fromkeys(evidence(answer.group.nodes) for answer in answers)
    return list(found)


def to_csv(answers: Sequence[Answer]) -> str:
    """Return a row for each size, with units in the headers."""
    rows = [row for answer in answers for row in answer.to_dicts()]
    flat = [
        {
            name: value
            for name, value in row.items()
            if name not in ("schema_version", "nccl_model", "evidence", "assumed")
        }
        for row in rows
    ]
    out = io.StringIO()
    writer = csv.DictWriter(out, list(flat[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(flat)
    return out.getvalue()


def check_plot(path: Path) -> None:
    """Raise InvalidArgumentError if no plot could be written to this file."""
    from paceline.forecast.output.plotting import need_matplotlib

    need_matplotlib("--plot")
    check_writable("--plot", path)
    if path.suffix.lower() not in _SUFFIXES:
        raise InvalidArgumentError(f"--plot {path}: name a file that ends with {units.listed([*_SUFFIXES], 'or')}")


def draw(answers: Sequence[Answer], path: Path) -> None:
    """Draw bus bandwidth over size, a line for each answer."""
    from paceline.forecast.output import style
    from paceline.forecast.output.plotting import save

    names = [f"{NAMES[it.kind]}, {units.count(it.group.ranks, 'GPU')}" for it in answers]
    if len({it.bandwidth_bps for it in answers}) > 1:
        names = [f"{name}, {units.rate(it.bandwidth_bps)}" for name, it in zip(names, answers, strict=True)]
    looks = style.systems(names)
    with style.context():
        figure = style.new_figure(7.0, 4.4)
        axes = figure.subplots()
        for name, answer in zip(names, answers, strict=True):
            sizes = [it.size for it in answer.times]
            rates = [it.bus_bandwidth / 1e9 for it in answer.times]
            look = looks[name]
            axes.plot(sizes, rates, label=name, color=look.colour, marker=look.marker, markersize=4)
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_formatter(lambda value, _place: units.size(value))
        axes.set(xlabel="size", ylabel="bus bandwidth, GB/s", title=f"NCCL on {answers[0].cluster}")
        axes.set_ylim(bottom=0)
        axes.legend(frameon=False)
        with replaced(path) as file:
            save(figure, file, path.suffix.lower().removeprefix("."))
