"""The study's figures: iteration breakdown, gains over GPUs, strong scaling."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from paceline._internal.files import replaced
from paceline.catalog.strategies import all_coordinators
from paceline.forecast.coordinator_model.networks import networks
from paceline.forecast.output import style

from paceline_lab.studies.curves import DPI
from paceline_lab.studies.load_imbalance.compared import PUBLISHED_GRAPH, PUBLISHED_MOST, PUBLISHED_RANGES
from paceline_lab.studies.load_imbalance.runs import (
    BASELINE,
    FITTED,
    GPUS,
    GRAPH,
    LARGEST,
    STRONG,
    STRONG_NETWORK,
    Point,
    Results,
    gain,
)

_PARTS = (
    ("compute", style.PARTS["compute"]),
    ("coordinator", style.PARTS["coordinator"]),
    ("copy", style.PARTS["copy"]),
    ("collective", style.PARTS["collective"]),
)


def draw(results: Results, folder: Path) -> list[str]:
    """Draw into the folder; return the files."""
    return [
        _saved(_breakdown(results), folder / "load-imbalance-breakdown.png"),
        _saved(_gains(results), folder / "load-imbalance-gains.png"),
        _saved(_strong(results), folder / "load-imbalance-strong.png"),
    ]


def _names() -> list[str]:
    return [it.name for it in all_coordinators()]


def _canvas(columns: int, width: float, rows: int = 1) -> tuple[Any, Any]:
    canvas: Any = style.new_figure(width, 4.6 * rows)
    return canvas, canvas.subplots(rows, columns, squeeze=False)


def _saved(made: Any, path: Path) -> str:  # noqa: ANN401
    with style.context(), replaced(path) as file:
        made().savefig(file, dpi=DPI, format="png")
    return str(path)


def _breakdown(results: Results) -> Any:  # noqa: ANN401
    """One bar per coordinator and number of GPUs, ResNet-50."""

    def make() -> Any:  # noqa: ANN401
        canvas, grid = _canvas(1, 13.0)
        axes = grid[0][0]
        names, width = _names(), 0.16
        for place, name in enumerate(names):
            bottom = [0.0] * len(GPUS)
            for part, color in _PARTS:
                own = [getattr(results[Point(STRONG_NETWORK, name, gpus)], f"{part}_s") * 1e3 for gpus in GPUS]
                at = [index + (place - 2) * (width + 0.015) for index in range(len(GPUS))]
                label = part if place == 0 else None
                axes.bar(at, own, width, bottom, color=color, label=label)
                bottom = [low + high for low, high in zip(bottom, own, strict=True)]
            for x, top in zip(at, bottom, strict=True):
                axes.text(x, top + 1, name, rotation=90, ha="center", va="bottom", fontsize=7)
        axes.set_xticks(range(len(GPUS)), [f"{gpus:,}" for gpus in GPUS])
        axes.set(
            xlabel="GPUs", ylabel="ms of an iteration", title="ResNet-50, batch 32 per GPU: where an iteration goes"
        )
        axes.set_ylim(0, axes.get_ylim()[1] * 1.18)
        axes.legend(frameon=False, loc="upper left")
        return canvas

    return make


def _gains(results: Results) -> Any:  # noqa: ANN401
    """One panel per network: gain over GPUs, one line per coordinator, and what was published."""

    def make() -> Any:  # noqa: ANN401
        canvas, grid = _canvas(3, 13.0, 3)
        for axes, network in zip(grid.flat, networks(), strict=True):
            for place, name in enumerate(_names()):
                if name != BASELINE:
                    own = [100 * gain(results, Point(network, name, gpus)) for gpus in GPUS]
                    look = style.coordinator(place)
                    axes.plot(GPUS, own, color=look.color, marker=look.marker, markersize=5, label=name)
            _published(axes, network)
            axes.axhline(0, color="0.6", linewidth=0.8)
            _gpu_axis(axes, GPUS)
            fitted = "fitted" if network in FITTED else "checked"
            axes.set(title=f"{network} ({fitted})", ylabel=f"gain over {BASELINE} (%)", ylim=(-26, 38))
            axes.grid(color="0.92")
        lines = [*grid.flat[0].get_legend_handles_labels()[0], *grid.flat[2].get_legend_handles_labels()[0]]
        shown = {line.get_label(): line for line in lines}
        canvas.legend(list(shown.values()), list(shown), loc="outside lower center", ncols=6, frameon=False)
        canvas.suptitle(f"Weak scaling, batch 32 per GPU, to {LARGEST:,} GPUs: the gain of each remedy")
        return canvas

    return make


def _published(axes: Any, network: str) -> None:  # noqa: ANN401
    """Draw what the publication gives for graph order: a range as a band, single figures as dashed lines."""
    place = _names().index(GRAPH)
    if network in PUBLISHED_RANGES:
        low, high = PUBLISHED_RANGES[network]
        label = f"{GRAPH}, published range"
        axes.axhspan(low, high, color=style.coordinator(place).color, alpha=0.12, linewidth=0, label=label)
    singles = {(name, value) for name, value in PUBLISHED_MOST.items()} if network == STRONG_NETWORK else set()
    singles |= {(GRAPH, value) for value in PUBLISHED_GRAPH.get(network, ())}
    for name, value in sorted(singles):
        color = style.coordinator(_names().index(name)).color
        axes.axhline(value, color=color, linestyle="--", linewidth=1, label="published, at most or on average")


def _gpu_axis(axes: Any, counts: tuple[int, ...]) -> None:  # noqa: ANN401
    from matplotlib.ticker import NullLocator

    axes.set_xscale("log", base=2)
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xticks(counts, [f"{gpus:,}" for gpus in counts], rotation=30)


def _strong(results: Results) -> Any:  # noqa: ANN401
    """Images/s at a global batch of 24,576."""

    def make() -> Any:  # noqa: ANN401
        canvas, grid = _canvas(1, 7.0)
        axes, counts = grid[0][0], GPUS[1:]
        for place, name in enumerate(_names()):
            own = [(results[Point(STRONG_NETWORK, name, gpus, STRONG)].samples_per_s or 0.0) / 1e3 for gpus in counts]
            look = style.coordinator(place)
            axes.plot(counts, own, color=look.color, marker=look.marker, markersize=5, label=name)
        axes.axvline(1536, color=style.REFERENCE, linestyle="--", linewidth=1, label="published: slight drop from here")
        _gpu_axis(axes, counts)
        axes.set(xlabel="GPUs", ylabel="thousand images/s", ylim=(0, None))
        axes.set_title("ResNet-50, strong scaling, 24,576 images an iteration")
        axes.grid(color="0.92")
        axes.legend(frameon=False, loc="lower right")
        return canvas

    return make
