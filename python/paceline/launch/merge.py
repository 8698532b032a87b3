"""Merges the recordings of all ranks into one trace, and reports on it."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from statistics import median
from typing import Any

from paceline._internal import block, units
from paceline._internal.block import Fact
from paceline._internal.files import replaced
from paceline.errors import JobError
from paceline.launch.injection import problem
from paceline.launch.outcomes import runs
from paceline.launch.recordings import MOST_OF_ALL, Records

_MOST_REASONS = 3
_NOTEWORTHY = 0.1
"""Share of a step by which recording makes it longer."""


@dataclass(frozen=True)
class Recorded:
    """The recording of one rank."""

    rank: int
    summary: dict[str, Any]
    trace: dict[str, Any]
    recorded: int
    """Steps."""

    @property
    def compute_s(self) -> float:
        """Seconds of forward, backward and optimizer per step."""
        parts = ("forward_s", "backward_s", "optimizer_s")
        return float(sum(self.summary[part] for part in parts))

    @property
    def gradients(self) -> list[tuple[str, int]]:
        """Names and sizes of gradients, in the order in which they become ready."""
        return [(gradient["tensor"], gradient["bytes"]) for gradient in self.trace["workers"][0]["gradients"]]


def write(path: Path, records: Records, ranks: int, requested: int) -> list[str]:
    """Write the trace, and return lines about it.

    `requested`: steps. Raises JobError if there is none, and OSError.
    """
    every = _gather(records, ranks)
    trace = merged(every)
    with replaced(path) as new, new.open("w", encoding="utf-8") as file:
        json.dump(trace, file, indent=1)
        file.write("\n")
    return summary(every, trace, path, requested)


def _gather(records: Records, ranks: int) -> list[Recorded]:
    """Return all ranks' recordings. Raises JobError naming ranks without one, and the reasons."""
    if records.too_large:
        raise JobError(f"no trace: the traces of all ranks exceed {MOST_OF_ALL:,} bytes", remedy="-np with fewer ranks")
    every: list[Recorded] = []
    reasons: dict[str, list[int]] = {}
    remedies: list[str] = []
    for rank in range(ranks):
        result, trace = records.of(rank)
        reason, remedy = (trace, None) if isinstance(trace, str) else problem(result)
        if reason is None and (result is None or trace is None):
            reason = "its trace did not arrive"
        if reason is not None:
            reasons.setdefault(reason, []).append(rank)
            remedies += [remedy] if remedy else []
        elif isinstance(trace, dict) and result is not None:
            every.append(Recorded(rank, result["summary"], trace, result["recorded"]))
    if reasons:
        shown = [f"rank {runs(some)}: {reason}" for reason, some in list(reasons.items())[:_MOST_REASONS]]
        more = len(reasons) - len(shown)
        said = "no trace of " + "; ".join(shown) + (f"; and {more} more reasons" if more else "")
        raise JobError(said, remedy=remedies[0] if remedies else "the output of these ranks")
    return every


def merged(every: Sequence[Recorded]) -> dict[str, Any]:
    """Return the trace of all ranks, in order. Raises JobError if they do not train the same model."""
    first = every[0]
    if len(every) == 1:
        return first.trace
    for other in every[1:]:
        difference = _difference(first, other)
        if difference is not None:
            raise JobError(f"no trace: {difference}", remedy="the same model on all ranks")
    slowest, fastest = _extremes(every)
    batches = [each.trace["batch"] for each in every]
    provenance = [
        f"{len(every)} ranks of `paceline run`",
        f"rank {first.rank}: {first.trace['provenance']}",
        f"forward, backward and optimizer take from {_ms(fastest.compute_s)} (rank {fastest.rank}) to "
        f"{_ms(slowest.compute_s)} (rank {slowest.rank})",
        *(
            [f"batches from {min(batches)} to {max(batches)}: the trace has their mean"]
            if len(set(batches)) > 1
            else []
        ),
    ]
    return {
        **first.trace,
        "provenance": "; ".join(provenance),
        "batch": max(1, round(sum(batches) / len(batches))),
        "device": ", ".join(dict.fromkeys(each.trace["device"] for each in every)),
        "workers": [each.trace["workers"][0] for each in every],
    }


def summary(every: Sequence[Recorded], trace: dict[str, Any], path: Path, requested: int) -> list[str]:
    """Return lines on what was recorded, how much ranks differ, and what to do next."""
    ranks = len(every)
    workers = [ranks, 2 * ranks, 4 * ranks] if ranks > 1 else [2, 4, 8]
    # Another host's release may be older.
    options = every[0].summary.get("forecast_options", "").split()
    words = ["paceline simulate", shlex.quote(str(path)), "--workers", ",".join(map(str, workers)), *options]
    steps = sorted({each.summary["steps"] for each in every})
    counted = units.count(steps[0], "step") if len(steps) == 1 else f"{steps[0]}-{steps[-1]} steps"
    what = f"{counted} of {units.count(ranks, 'rank')}: {units.printable(trace['name'])}, batch {trace['batch']}"
    lines = [*block.headline(f"Recorded {what}"), "", *block.block(_facts(every, requested)), ""]
    return [*lines, f"Wrote {units.printable(str(path))}", *block.suggestion(" ".join(words))]


def _facts(every: Sequence[Recorded], requested: int) -> Iterator[Fact]:
    parts = ("forward", "backward", "optimizer")
    medians = [f"{part} {_ms(median(each.summary[f'{part}_s'] for each in every))}" for part in parts]
    yield Fact("Medians", ", ".join(medians))
    slowest, fastest = _extremes(every)
    if len(every) > 1 and fastest.compute_s > 0:
        ratio = slowest.compute_s / fastest.compute_s
        if units.short(ratio) != "1":
            much = units.factor(ratio)
            yield Fact("Slowest", f"rank {slowest.rank} computes {much} as long as rank {fastest.rank}")
    fewest = min(each.recorded for each in every)
    if fewest < requested:
        yield Fact("Ended early", f"after {fewest} of {units.count(requested, 'requested step')}")
    longer = median(each.summary.get("overhead_ratio") or 1.0 for each in every) - 1
    if longer >= _NOTEWORTHY:
        yield Fact("Overhead", f"recording made steps {units.percent(longer, 0)} longer, which is in their times")


def _extremes(every: Sequence[Recorded]) -> tuple[Recorded, Recorded]:
    """Return the rank that computes longest, and the one that computes shortest."""
    return max(every, key=lambda each: each.compute_s), min(every, key=lambda each: each.compute_s)


def _difference(first: Recorded, other: Recorded) -> str | None:
    """Return the first difference of a rank's model from rank 0's."""
    one, two = f"rank {first.rank}", f"rank {other.rank}"
    if first.trace["dtype"] != other.trace["dtype"]:
        return f"the gradients of {two} are {other.trace['dtype']}, those of {one} {first.trace['dtype']}"
    names, others = dict(first.gradients), dict(other.gradients)
    pairs = first.gradients, other.gradients
    if not first.summary.get("in_order", True):
        pairs = sorted(first.gradients), sorted(other.gradients)
    for ours, theirs in zip_longest(*pairs):
        if ours == theirs:
            continue
        if theirs is not None and theirs[0] not in names:
            return f"{two} has a gradient of {theirs[0]} ({theirs[1]:,} bytes), {one} has none"
        if ours is not None and ours[0] not in others:
            return f"{one} has a gradient of {ours[0]} ({ours[1]:,} bytes), {two} has none"
        assert ours is not None and theirs is not None, (
            "names are unique, so lists with the same names have the same length"
        )
        if ours[0] == theirs[0]:
            return f"the gradient of {ours[0]} has {theirs[1]:,} bytes on {two}, and {ours[1]:,} on {one}"
        return f"gradients become ready in another order: {theirs[0]} on {two} when {ours[0]} does on {one}"
    return None


def _ms(seconds: float) -> str:
    return f"{units.short(seconds * 1e3)} ms"
