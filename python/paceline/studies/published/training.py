"""Published training rates of transformers on one node and on many, and their forecasts: calls of `paceline.simulate`.

A row says model, GPU, batch and software (`transformers`), and GPUs, nodes and network. NCCL's ring carries the
collectives. Where the network is not stated, it is that of the GPU's usual platform, and the forecast says so.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import click

from paceline._internal import units
from paceline._internal.console import Column, render, wrapped
from paceline.catalog.nccl import constant
from paceline.errors import InvalidArgumentError
from paceline.forecast.simulate import simulate
from paceline.studies.published import transformers
from paceline.studies.published.transformers import Case

_NICS = re.compile(r"(\d+)\s*x\s*(\d+(?:\.\d+)?)\s*Gbit/s", re.IGNORECASE)
_RATE = re.compile(r"(\d+(?:\.\d+)?)\s*Gbit/s", re.IGNORECASE)
# Gbit/s of a node of the GPU's usual platform: DGX-2 (8 cards of 100), DGX A100 (8 of 200), DGX H100 (8 of 400).
_PLATFORM = {"volta": 800, "ampere": 1600, "hopper": 3200, "blackwell": 3200}
_HOP_S = 14e-6
"""A step of NCCL's ring between nodes, protocol Simple (NVIDIA/nccl src/graph/tuning.cc)."""
_MOST_GPUS = 60_000


@dataclass(frozen=True)
class Trained:
    """A row's forecast, in samples per second and GPU."""

    case: Case
    forecast: float
    sharding: str
    assumed: str
    """What the row does not say, and its forecast assumes."""

    @property
    def error(self) -> float:
        """Forecast over measured, minus 1."""
        return self.forecast / self.case.measured - 1

    def to_dict(self) -> dict[str, Any]:
        """Return it as `--json` prints it."""
        one = self.case.workload
        return {
            "id": self.case.name,
            "source": self.case.group,
            "model": one.model.name,
            "gpu": one.hardware.name,
            "gpus": self.case.gpus,
            "sharding": self.sharding,
            "metric": "samples/s/GPU",
            "published": self.case.measured,
            "forecast": self.forecast,
            "error": self.error,
            "published_mfu": one.mfu(self.case.measured),
            "assumed": self.assumed,
        }


def forecasts(
    rows: Sequence[Mapping[str, str]], progress: Callable[[int, int], None] | None = None
) -> tuple[list[Trained], dict[str, str]]:
    """Return the forecasts of rows of training, and why the others are left out, by id."""
    found: list[Trained] = []
    cases, left_out = transformers.cases(rows, most=_MOST_GPUS)
    by_id = {row["id"]: row for row in rows}
    for done, case in enumerate(cases):
        if progress is not None:
            progress(done, len(cases))
        try:
            found.append(forecast(case, by_id[case.name]))
        except InvalidArgumentError as error:
            left_out[case.name] = str(error)
    return found, left_out


def forecast(case: Case, row: Mapping[str, str]) -> Trained:
    """Return the forecast of a row. Raises InvalidArgumentError if it cannot be simulated."""
    per_node, assumed = _gpus_per_node(case, row)
    sharding = case.sharding
    fields: dict[str, Any] = {"gpus_per_node": per_node}
    if "hsdp" in row["strategy"].lower():
        sharding = f"hsdp:{min(per_node, case.gpus)}"
    if "shard_grad_op" in row["strategy"].lower():
        # FSDP gathers units one after the other in this mode, too, but once.
        sharding, fields["reshard_after_forward"] = "zero3", "no"
    if case.gpus > per_node:
        rate, where = _network(case, row)
        assumed += where
        fields |= {"bandwidth": f"{rate * constant('network.share'):g}Gbps", "channel": "none"}
        fields["latency"] = f"{_HOP_S * constant('hop.factor') * 1e6:g}us"
    bus = case.workload.hardware.bus_bandwidth
    if bus is not None and per_node > 1:
        fields["intra_bandwidth"] = f"{8 * bus / 1e9:g}Gbps"
    result = simulate(
        case.workload.trace(),
        None,
        "ring",
        workers=case.gpus,
        sharding=sharding,
        accumulate=case.accumulate,
        critical_path=False,
        bucket_size=None if sharding.startswith(("zero3", "hsdp")) else case.bucket_size,
        **fields,
    )
    assert result.samples_per_s is not None
    return Trained(case, result.samples_per_s / case.gpus, sharding, "; ".join(assumed))


def _gpus_per_node(case: Case, row: Mapping[str, str]) -> tuple[int, list[str]]:
    if found := re.search(r"\d+", row.get("gpus_per_node", "")):
        return int(found[0]), []
    return min(8, case.gpus), ["8 GPUs a node"]


def _network(case: Case, row: Mapping[str, str]) -> tuple[float, list[str]]:
    """Return the rate of a node in Gbit/s, and what is assumed."""
    words = row.get("inter_bw", "")
    if cards := _NICS.search(words):
        return int(cards[1]) * float(cards[2]), []
    if rate := _RATE.search(words):
        return float(rate[1]), ([] if "per node" in words else ["the rate is that of a node"])
    usual = _PLATFORM.get(case.workload.hardware.architecture, 100)
    return usual, [f"{usual} Gbit/s a node, as its usual platform has"]


def table(found: Sequence[Trained], width: int) -> list[str]:
    """Return the rows by source, and mean and worst error of each, as lines for people."""
    columns = [Column("row", left=True), Column("GPUs"), Column("sharding", left=True), Column("published")]
    columns += [Column("forecast"), Column("error"), Column("MFU")]
    lines: list[str] = []
    for source in dict.fromkeys(it.case.group for it in found):
        own = [it for it in found if it.case.group == source]
        lines += [click.style(line, bold=True) for line in wrapped(source, width)]
        cells = [
            [
                it.case.name,
                str(it.case.gpus),
                it.sharding,
                units.digits(it.case.measured),
                units.digits(it.forecast),
                f"{it.error:+.1%}",
                units.percent(it.case.workload.mfu(it.case.measured)),
            ]
            for it in own
        ]
        lines += [*render(columns, [cells], highlight_first=False), _summed("", own), ""]
    return [*lines, *(_summed(f"{name}: ", part) for name, part in parts(found))]


def parts(found: Sequence[Trained]) -> list[tuple[str, list[Trained]]]:
    """Return the rows by what may be expected of them."""
    modern = ("ampere", "hopper", "blackwell")
    several = {
        "training on one node": [it for it in found if it.case.gpus <= transformers.ONE_NODE],
        "training on several nodes, A100 and newer": [
            it
            for it in found
            if it.case.gpus > transformers.ONE_NODE and it.case.workload.hardware.architecture in modern
        ],
        "training on several nodes, older": [
            it
            for it in found
            if it.case.gpus > transformers.ONE_NODE and it.case.workload.hardware.architecture not in modern
        ],
    }
    return [(name, part) for name, part in several.items() if part]


def numbers(found: Sequence[Trained]) -> dict[str, Any]:
    """Return rows, mean and worst error."""
    mean, worst = transformers.spread([it.error for it in found])
    return {"rows": len(found), "mean": mean, "worst": worst}


def _summed(what: str, found: Sequence[Trained]) -> str:
    them = numbers(found)
    return f"{what}{units.count(them['rows'], 'row')}, mean error {them['mean']:.1%}, greatest {them['worst']:.1%}"
