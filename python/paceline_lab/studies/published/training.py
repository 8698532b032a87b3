"""Published training rates of transformers on one node and on many, and their forecasts: calls of `paceline.simulate`.

A row says model, GPU, batch and software (`transformers`), and GPUs, nodes and network. Sharded training takes the
times of NCCL's model on the GPU's usual nodes, DDP those of NCCL's ring. Where the network is not stated, it
is that of the usual platform, and the forecast says so. With an anchor, the row of fewest GPUs in a series sets its
computation.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import click
from paceline._core import parse_size
from paceline._internal import units
from paceline._internal.console import Column, render, wrapped
from paceline.catalog.constants import assuming
from paceline.catalog.models.exchanges import element_bytes
from paceline.catalog.nccl import constant
from paceline.errors import InvalidArgumentError
from paceline.forecast.simulate import simulate

from paceline_lab.studies.priors import priors_without
from paceline_lab.studies.published import transformers
from paceline_lab.studies.published.transformers import Case
from paceline_lab.studies.report import csv_of

_NICS = re.compile(r"(\d+)\s*x\s*(\d+(?:\.\d+)?)\s*Gbit/s", re.IGNORECASE)
_RATE = re.compile(r"(\d+(?:\.\d+)?)\s*Gbit/s", re.IGNORECASE)
# Gbit/s of a node of the GPU's usual platform: DGX-2 (8 cards of 100), DGX A100 (8 of 200), DGX H100 (8 of 400).
_PLATFORM = {"volta": 800, "ampere": 1600, "hopper": 3200, "blackwell": 3200}
_HOP_S = 14e-6
"""A step of NCCL's ring between nodes, protocol Simple (NVIDIA/nccl src/graph/tuning.cc)."""
_MOST_GPUS = 60_000
_GROUP = re.compile(r"zero-?1 (?:inside|within|in) the node(?: \((\d+)\))?", re.IGNORECASE)
# An anchor outside of these is a row that was read wrongly, not a faster GPU.
_SPEEDUPS = (0.25, 4.0)
_ANCHOR_PRECISION = 1e-4


_ONE_NODE, _PARALLEL = "training on one node", "training with tensor, pipeline or context parallelism"
_MODERN, _OLDER = "training on several nodes, A100 and newer", "training on several nodes, older"
_ASSUMED = "training of models whose shape is assumed"
_PARTS = (_ONE_NODE, _MODERN, _OLDER, _PARALLEL, _ASSUMED)


@dataclass(frozen=True)
class Trained:
    """A row's forecast, in samples per second and GPU."""

    case: Case
    forecast: float
    sharding: str
    assumed: str
    """Assumptions of the forecast where the row is silent."""
    speedup: float = 1.0
    """Of computation, as its anchor has it."""
    anchor: str | None = None
    """The row that set it."""
    nodes: int = 1
    link_bps: float = 0.0
    """The rate of a node's links."""

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
            "anchor": self.anchor,
            "compute_speedup": self.speedup,
        }


def forecasts(
    rows: Sequence[Mapping[str, str]],
    progress: Callable[[int, int], None] | None = None,
    *,
    anchor: bool = False,
) -> tuple[list[Trained], dict[str, str]]:
    """Return the forecasts of rows of training, and why the others are left out, by id.

    With `anchor`, the row of fewest GPUs of each series sets the computation of the others, and is left out.
    """
    trained: list[Trained] = []
    cases, left_out = transformers.cases(rows, most=_MOST_GPUS)
    by_id = {row["id"]: row for row in rows}
    anchors = _anchors(cases, by_id) if anchor else {}
    speedups: dict[str, float] = {}
    for done, case in enumerate(sorted(cases, key=lambda it: it.gpus) if anchor else cases):
        if progress is not None:
            progress(done, len(cases))
        own = anchors.get(case.name)
        try:
            if own == case.name:
                speedups[own] = matched(case, by_id[own])
                left_out[own] = "anchors of their series: each sets the computation of the other rows"
            elif own is None:
                trained.append(forecast(case, by_id[case.name]))
            elif own in speedups:
                trained.append(forecast(case, by_id[case.name], speedups[own], own))
            else:
                left_out[case.name] = f"no computation explains its anchor, {own}"
        except InvalidArgumentError as error:
            left_out[case.name] = str(error)
    places = {case.name: place for place, case in enumerate(cases)}
    return sorted(trained, key=lambda it: places[it.case.name]), left_out


def leave_one_source_out(rows: Sequence[Mapping[str, str]], *, anchor: bool = False) -> list[Trained]:
    """Return the forecasts of each source's rows with the priors of all constants that were calibrated on it."""
    trained: list[Trained] = []
    for source in dict.fromkeys(row["source"] for row in rows):
        with assuming(priors_without(source)):
            trained += forecasts([row for row in rows if row["source"] == source], anchor=anchor)[0]
    return trained


def _anchors(cases: Sequence[Case], rows: Mapping[str, Mapping[str, str]]) -> dict[str, str]:
    """Return the anchor of each row, itself included: that of fewest GPUs among rows alike but for GPUs and batch."""
    series: dict[tuple[object, ...], list[Case]] = {}
    for case in cases:
        row, one = rows[case.name], case.workload
        words = tuple(row.get(name, "") for name in ("source", "system", "strategy", "precision", "gpu", "unit"))
        series.setdefault((words, one.model.name, one.tokens, one.checkpointing), []).append(case)
    return {case.name: min(own, key=lambda it: it.gpus).name for own in series.values() for case in own}


def matched(case: Case, row: Mapping[str, str]) -> float:
    """Return the speedup of computation with which a row is forecast as measured. Raises InvalidArgumentError."""
    low, high = _SPEEDUPS
    if not forecast(case, row, low).forecast <= case.measured <= forecast(case, row, high).forecast:
        raise InvalidArgumentError(
            f"no computation between {low:g} and {high:g} times as fast as forecast explains it",
            remedy="its value, unit, batch and network as published",
        )
    while high / low > 1 + _ANCHOR_PRECISION:
        middle = math.sqrt(low * high)
        low, high = (middle, high) if forecast(case, row, middle).forecast < case.measured else (low, middle)
    return math.sqrt(low * high)


def forecast(case: Case, row: Mapping[str, str], speedup: float = 1.0, anchor: str | None = None) -> Trained:
    """Return the forecast of a row. Raises InvalidArgumentError if it cannot be simulated."""
    hardware, tensor = case.workload.hardware, case.workload.tensor
    per_node, assumed = _gpus_per_node(case, row)
    assumed += [case.assumed] if case.assumed else []
    sharding = case.sharding
    words = row["strategy"].lower()
    # A rank of the simulation is the GPUs that share every layer.
    fields: dict[str, Any] = {"gpus_per_node": max(1, per_node // tensor), "gpus_per_rank": tensor}
    if "hsdp" in words:
        sharding = f"hsdp:{min(per_node, case.gpus) // tensor}"
    if "shard_grad_op" in words:
        # FSDP gathers units one after the other in this mode, too, but once.
        sharding, fields["reshard_after_forward"] = "zero3", "no"
    shards = case.gpus // case.workload.gpus
    if sharding == "zero1" and (group := _GROUP.search(words)) is not None:
        ranks = int(group[1] or per_node // tensor)
        sharding, shards = (f"zero1:{ranks}", ranks) if ranks < shards else ("zero1", shards)
    if per_node % tensor and case.gpus > per_node:
        raise InvalidArgumentError(
            f"{tensor} tensor-parallel GPUs do not divide a node of {per_node}", remedy=f"{per_node}, or fewer"
        )
    # Sharded collectives take the times of NCCL's model, which knows the GPU's usual nodes.
    cluster = _node(case, row) if sharding != "none" else None
    if case.gpus > per_node:
        rate, cards, where = _network(case, row)
        assumed += where
        if cluster is None:
            fields |= {"bandwidth": f"{rate * constant('network.share'):g}Gbps", "channel": "none"}
            fields["latency"] = f"{_HOP_S * constant('hop.factor') * 1e6:g}us"
        else:
            fields["bandwidth"] = f"{rate:g}Gbps"
            fields |= {"nics_per_node": cards} if cards else {}
    bus = hardware.bus_bandwidth
    if cluster is None and bus is not None and fields["gpus_per_node"] > 1:
        fields["intra_bandwidth"] = f"{8 * bus / 1e9:g}Gbps"
    result = simulate(
        case.workload.trace(),
        cluster,
        "ring" if cluster is None else "native",
        workers=case.gpus // case.workload.gpus,
        sharding=sharding,
        accumulate=case.accumulate,
        critical_path=False,
        overlap=case.overlap,
        bucket_size=None if sharding.startswith(("zero3", "hsdp")) else _bucket_size(case, shards),
        compute_speedup=speedup,
        **fields,
    )
    assert result.samples_per_s is not None
    return Trained(
        case,
        # Ranks that share samples count their parts.
        result.samples_per_s / case.gpus / case.workload.context,
        sharding,
        "; ".join(assumed),
        speedup,
        anchor,
        nodes=-(-case.gpus // per_node),
        link_bps=result.bandwidth_bps,
    )


def _node(case: Case, row: Mapping[str, str]) -> str | None:
    """Return the built-in cluster whose nodes are like those of the row: the GPU's usual ones, but for EFA."""
    usual = case.workload.hardware.node
    has_efa = re.search(r"\b(?:EFA|p4d)\b", f"{row.get('inter_bw', '')} {row['gpu']} {row['system']}", re.IGNORECASE)
    return "dgx-a100" if usual == "p4d.24xlarge" and has_efa is None else usual


def _bucket_size(case: Case, shards: int) -> str | int | None:
    if not (case.by_owner and case.bucket_size):
        return case.bucket_size
    of_a_rank = case.workload.model.parameters * element_bytes(case.workload.precision) // shards
    return min(parse_size(case.bucket_size), of_a_rank)


def _gpus_per_node(case: Case, row: Mapping[str, str]) -> tuple[int, list[str]]:
    if match := re.search(r"\d+", row.get("gpus_per_node", "")):
        return int(match[0]), []
    return min(8, case.gpus), ["8 GPUs a node"]


def _network(case: Case, row: Mapping[str, str]) -> tuple[float, int, list[str]]:
    """Return the rate of a node in Gbit/s, its cards (0: those of the usual node), and what is assumed."""
    words = row.get("inter_bw", "")
    if cards := _NICS.search(words):
        return int(cards[1]) * float(cards[2]), int(cards[1]), []
    if rate := _RATE.search(words):
        each = re.search(r"(?:per|a|/)\s*GPU", words, re.IGNORECASE)
        if each is not None and "node" not in words.lower():
            per_node, _ = _gpus_per_node(case, row)
            return float(rate[1]) * per_node, per_node, []
        is_said = re.search(r"(?:per|a|/)\s*node", words, re.IGNORECASE) is not None and each is None
        return float(rate[1]), 0, ([] if is_said else ["the rate is that of a node"])
    usual = _PLATFORM.get(case.workload.hardware.architecture, 100)
    return usual, 0, [f"{usual} Gbit/s a node, as its usual platform has"]


def to_csv(trained: Sequence[Trained]) -> str:
    """Return the rows as CSV."""
    return csv_of([it.to_dict() for it in trained], ["id"])


def table(trained: Sequence[Trained], blind: Sequence[Trained], width: int) -> list[str]:
    """Return the rows by source, and mean and worst error of each, as lines for people.

    Args:
        trained: The rows.
        blind: The same with each row's source left out.
        width: Of the terminal.
    """
    columns = [Column("row", left=True), Column("GPUs"), Column("sharding", left=True), Column("published")]
    columns += [Column("forecast"), Column("error"), Column("MFU")]
    lines: list[str] = []
    for source in dict.fromkeys(it.case.group for it in trained):
        own = [it for it in trained if it.case.group == source]
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
        lines += [*render(columns, [cells]), _summed("", own), ""]
    lines += [_summed(f"{name}: ", part) for name, part in parts(trained)]
    without = [_summed(f"{name}: ", part) for name, part in parts(blind)]
    return [*lines, "with the priors of constants that were calibrated on a row's source:", *without]


def parts(trained: Sequence[Trained]) -> list[tuple[str, list[Trained]]]:
    """Return the rows by what may be expected of them."""
    named = [(name, [it for it in trained if _part(it.case) == name]) for name in _PARTS]
    return [(name, part) for name, part in named if part]


def _part(case: Case) -> str:
    if not case.has_shape:
        return _ASSUMED
    if case.workload.gpus * case.workload.context > 1:
        return _PARALLEL
    if case.gpus <= transformers.ONE_NODE:
        return _ONE_NODE
    return _MODERN if case.workload.hardware.architecture in ("ampere", "hopper", "blackwell") else _OLDER


def numbers(trained: Sequence[Trained]) -> dict[str, Any]:
    """Return rows, mean and worst error."""
    mean, worst = transformers.spread([it.error for it in trained])
    return {"rows": len(trained), "mean": mean, "worst": worst}


def _summed(what: str, trained: Sequence[Trained]) -> str:
    them = numbers(trained)
    return f"{what}{units.count(them['rows'], 'row')}, mean error {them['mean']:.1%}, greatest {them['worst']:.1%}"
