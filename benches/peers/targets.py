"""The runtime's performance targets, and whether the results of a run meet them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import allreduce
import idle
import summary
from summary import KIB, MIB


@dataclass(frozen=True)
class Target:
    """At the sizes that `at` selects, ours is `wanted` times as fast as the best of `peers`."""

    text: str
    ranks: int
    ours: str
    peers: tuple[str, ...]
    at: Callable[[int], bool]
    wanted: float


def _to(most: int) -> Callable[[int], bool]:
    return lambda size: size <= most


def _at(one: int) -> Callable[[int], bool]:
    return lambda size: size == one


_TORCH = ("torch-paceline", ("gloo",))
TARGETS = [
    Target("gloo, through torch, to 64 KiB", 2, *_TORCH, _to(64 * KIB), 10),
    Target("gloo, through torch, 1 MiB", 2, *_TORCH, _at(MIB), 5),
    Target("gloo, through torch, 16 MiB", 2, *_TORCH, _at(16 * MIB), 3),
    Target("gloo, through torch, from 64 MiB", 2, *_TORCH, lambda size: size >= 64 * MIB, 2.5),
    Target("the better MPI, but for 16 MiB", 2, "paceline", allreduce.MPI, lambda size: size != 16 * MIB, 1),
    Target("the better MPI, 16 MiB", 2, "paceline", allreduce.MPI, _at(16 * MIB), 1 / 1.15),
    Target("Open MPI, to 64 KiB", 4, "paceline", ("openmpi",), _to(64 * KIB), 2),
    Target("the better MPI, every size", 4, "paceline", allreduce.MPI, lambda _: True, 1),
    Target("Open MPI on TCP, every size", 2, "paceline-tcp", ("openmpi-tcp",), lambda _: True, 1),
    Target("Open MPI on TCP, every size", 4, "paceline-tcp", ("openmpi-tcp",), lambda _: True, 1),
    Target("gloo, ours on TCP, every size", 2, "torch-paceline-tcp", ("gloo",), lambda _: True, 1.5),
    Target("gloo, ours on TCP, every size", 4, "torch-paceline-tcp", ("gloo",), lambda _: True, 1.5),
]
TRAINING = {
    "mlp": ("gloo, training the MLP", 1.5),
    "mlp-views": ("gloo, training the MLP, gradients as bucket views", 1.5),
    "resnet18": ("gloo, training ResNet-18", 1.0),
}


def table(content: dict[str, Any]) -> summary.Table:
    """Each target with the size that is furthest from it; no rows until paceline has been measured."""
    rows = []
    for target in TARGETS:
        measured = content.get("all_reduce", {}).get(str(target.ranks))
        if not measured:
            continue
        times = allreduce.times(measured)
        peers = [times[name] for name in target.peers if name in times]
        ratios = {
            size: ratio.median
            for size, ours in times.get(target.ours, {}).items()
            if target.at(size) and peers
            if (ratio := summary.faster(summary.better([peer[size] for peer in peers]), ours))
        }
        if ratios:
            worst = min(ratios, key=lambda size: ratios[size])
            place = f" at {summary.size_text(worst)}" if len(ratios) > 1 else ""
            rows.append(_row(target.text, str(target.ranks), target.wanted, ratios[worst], place))
    for model, (text, wanted) in TRAINING.items():
        times = content.get("training", {}).get(model, {}).get("times", {})
        ratio = summary.faster(times["gloo"], times["paceline"]) if "paceline" in times else None
        rows += [_row(text, "2", wanted, ratio.median, "")] if ratio else []
    for kind, report in content.get("idle", {}).items():
        if kind != "gloo":
            met = "yes" if report["percent"] < idle.TARGET_PERCENT else "**no**"
            share = f"{report['percent']:.3f} % of a core"
            rows.append([f"{idle.KINDS[kind]}, idle", "2", f"under {idle.TARGET_PERCENT:.0f} %", share, met])
    return summary.Table("Targets, as speed relative to", ["", "ranks", "target", "measured", "met"], rows)


def _row(text: str, ranks: str, wanted: float, measured: float, place: str) -> list[str]:
    met = "yes" if measured >= wanted else "**no**"
    return [text, ranks, summary.factor(wanted), f"{summary.factor(measured)}{place}", met]
