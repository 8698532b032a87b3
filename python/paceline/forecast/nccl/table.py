"""NCCL's collectives as nccl-tests prints them, and their plot."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from paceline._internal import block, units
from paceline._internal.console import Column, render
from paceline._internal.files import check_writable, replaced
from paceline.errors import InvalidArgumentError
from paceline.forecast.nccl.model import CollectiveTime
from paceline.forecast.nccl.request import Answer
from paceline.forecast.result import SCHEMA_VERSION
from paceline.forecast.wording.nccl import COLLECTIVES, evidence, facts, headline, library, notes

_SUFFIXES = (".png", ".svg", ".pdf")


def lines(answers: Sequence[Answer]) -> list[str]:
    """Return for each answer its headline, its facts and a table with nccl-tests' columns, and the notes on all."""
    columns = [Column("size B"), Column("time us"), Column("algbw GB/s"), Column("busbw GB/s")]
    columns += [Column("algo", left=True), Column("proto", left=True)]
    made: list[str] = []
    for answer in answers:
        rows = [
            [
                f"{it.size:,}",
                units.digits(it.seconds * 1e6),
                f"{it.algorithm_bandwidth / 1e9:,.2f}",
                f"{it.bus_bandwidth / 1e9:,.2f}",
                it.algorithm,
                it.protocol,
            ]
            for it in answer.times
        ]
        cells = ["", *render(columns, [rows])] if len(rows) > 1 else []
        made += [*([""] if made else []), *block.headline(headline(answer)), "", *block.block(facts(answer)), *cells]
    return [*made, *block.notes(notes(answers))]


def to_csv(answers: Sequence[Answer]) -> str:
    """Return a row for each size, with units in the headers."""
    rows = [row for answer in answers for row in to_dicts(answer)]
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
        raise InvalidArgumentError(
            f"--plot {path}: unknown kind of file",
            remedy=f"--plot {path.with_suffix('.svg')} (one of {units.listed([*_SUFFIXES], 'or')})",
        )


def draw(answers: Sequence[Answer], path: Path) -> None:
    """Draw bus bandwidth over size, a line for each answer."""
    from paceline.forecast.output import style
    from paceline.forecast.output.plotting import save

    names = [f"{COLLECTIVES[it.kind]}, {units.count(it.group.ranks, 'GPU')}" for it in answers]
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
            axes.plot(sizes, rates, label=name, color=look.color, marker=look.marker, markersize=4)
        every = sorted({it.size for answer in answers for it in answer.times})
        style.x_axis(axes, every, "size", list(map(units.size, every)))
        axes.set(ylabel="bus bandwidth (GB/s)", title=f"{library(answers[0])} on {answers[0].cluster}")
        axes.set_ylim(bottom=0)
        axes.legend(frameon=False)
        with replaced(path) as file:
            save(figure, file, path.suffix.lower().removeprefix("."))


def to_dicts(answer: Answer) -> list[dict[str, Any]]:
    """Return an object for each size. Times in seconds, rates in bits per second."""
    return [_to_dict(answer, it) for it in answer.times]


def _to_dict(answer: Answer, it: CollectiveTime) -> dict[str, Any]:
    own = it.tuning
    return {
        "schema_version": SCHEMA_VERSION,
        "collective": it.kind,
        "bytes": it.size,
        "workers": answer.group.ranks,
        "nodes": answer.group.nodes,
        "cluster": answer.cluster,
        "bandwidth_bps": answer.bandwidth_bps,
        "time_s": it.seconds,
        "algorithm_bandwidth_bps": 8 * it.algorithm_bandwidth,
        "bus_bandwidth_bps": 8 * it.bus_bandwidth,
        "algorithm": it.algorithm,
        "protocol": it.protocol,
        "nccl_model": None
        if own is None
        else {"algorithm": own.algorithm, "protocol": own.protocol, "time_s": own.seconds},
        "evidence": evidence(answer),
        "assumed": list(answer.machine.assumed),
    }
