"""The study's figures: iteration time against bandwidth and workers, speed-up against modules and faster computation.

Colours are Paul Tol's "muted" scheme (SRON/EPS/TN/09-002), which colour-blind readers can distinguish.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline._internal.files import replaced
from paceline.studies.network_operator import mechanisms as m
from paceline.studies.network_operator.mechanisms import configured
from paceline.studies.network_operator.published import MODELS, TITLES
from paceline.studies.network_operator.runs import Config, Simulations

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_STYLES: dict[str, tuple[str, str, str]] = {
    m.SERVER: ("#000000", "-", "o"),
    m.MULTICAST: ("#88CCEE", "--", "s"),
    m.AGGREGATION: ("#DDCC77", "-.", "^"),
    m.BOTH: ("#117733", "-", "D"),
    m.RING: ("#332288", "--", "v"),
    m.RING_WHOLE: ("#CC6677", ":", "P"),
    m.RING_MULTICAST: ("#44AA99", "-.", "X"),
    m.BUTTERFLY: ("#882255", ":", "<"),
}
_BANDWIDTHS = (5, 10, 25, 50, 100)
_WORKERS = (4, 8, 16, 32, 64)
_MODULES = (1, 5, 25, 125)
_SPEEDUPS = (1, 2, 3, 5, 10)
_GAINS = (m.MULTICAST, m.AGGREGATION, m.BOTH, m.RING, m.BUTTERFLY)
DPI = 100


def _by_bandwidth(model: str, mechanism: str, gbps: float) -> Config:
    return configured(model, mechanism) if gbps == 25 else configured(model, mechanism, gbps=gbps)


def _by_workers(model: str, mechanism: str, workers: float) -> Config:
    return configured(model, mechanism) if workers == 32 else configured(model, mechanism, workers=int(workers))


def _by_modules(kind: str, mechanism: str, count: float) -> Config:
    return configured("inception-v3", mechanism, modules=f"{kind}:{int(count)}")


def _by_speedup(model: str, mechanism: str, factor: float) -> Config:
    return configured(model, mechanism) if factor == 1 else configured(model, mechanism, compute_speedup=float(factor))


@dataclass(frozen=True)
class Figure:
    """A grid of panels with one line per mechanism."""

    file: str
    title: str
    x_label: str
    x: Sequence[float]
    # The panels' parameter, and their titles.
    panels: dict[str, str]
    mechanisms: Sequence[str]
    config: Callable[[str, str, float], Config]
    # Speed-up over the parameter server alone, instead of seconds.
    gain: bool = False

    def configs(self) -> list[Config]:
        """Return the configurations to simulate for it."""
        names = [*self.mechanisms, m.SERVER] if self.gain else self.mechanisms
        return [self.config(panel, name, x) for panel in self.panels for name in names for x in self.x]


_MODEL_PANELS = {model: TITLES[model] for model in MODELS}
FIGURES = (
    Figure(
        "bandwidth.png",
        "32 workers, one parameter server",
        "bandwidth (Gbit/s)",
        _BANDWIDTHS,
        _MODEL_PANELS,
        m.MECHANISMS,
        _by_bandwidth,
    ),
    Figure(
        "workers.png",
        "25 Gbit/s, one parameter server",
        "workers",
        _WORKERS,
        _MODEL_PANELS,
        m.MECHANISMS,
        _by_workers,
    ),
    Figure(
        "modules.png",
        "Inception-v3 with modules added: 32 workers, 25 Gbit/s",
        "added modules",
        _MODULES,
        {"compute": "compute-heavy modules", "network": "network-heavy modules"},
        _GAINS,
        _by_modules,
        gain=True,
    ),
    Figure(
        "compute.png",
        "Faster computation: 32 workers, 25 Gbit/s",
        "compute speed-up",
        _SPEEDUPS,
        _MODEL_PANELS,
        _GAINS,
        _by_speedup,
        gain=True,
    ),
)


def figure_configs() -> list[Config]:
    """Return the configurations to simulate for the figures."""
    return [config for figure in FIGURES for config in figure.configs()]


def draw_all(simulations: Simulations, folder: Path) -> list[Path]:
    """Draw every figure into the folder; return the files."""
    return [_draw(figure, simulations, folder / figure.file) for figure in FIGURES]


def _draw(figure: Figure, simulations: Simulations, path: Path) -> Path:
    import matplotlib as mpl
    from matplotlib.figure import Figure as Canvas

    rows = (len(figure.panels) + 1) // 2
    with mpl.rc_context({"font.size": 9.5, "axes.spines.top": False, "axes.spines.right": False}):
        canvas = Canvas(figsize=(9.5, 1.4 + 2.9 * rows), layout="constrained")
        grid: Any = canvas.subplots(rows, 2, squeeze=False)
        for axes, (panel, title) in zip(grid.flat, figure.panels.items(), strict=True):
            _panel(axes, figure, panel, simulations)
            axes.set_title(title, fontsize="medium")
        for axes in grid[-1]:
            axes.set_xlabel(figure.x_label)
        for row in grid:
            row[0].set_ylabel("speed-up over the server alone" if figure.gain else "iteration time (s)")
        handles, labels = grid[0][0].get_legend_handles_labels()
        canvas.legend(handles, labels, loc="outside lower center", ncols=4 if len(labels) > 5 else 5, frameon=False)
        canvas.suptitle(figure.title)
        with replaced(path) as temporary:
            _save(canvas, temporary)
    return path


def _save(canvas: Any, path: Path) -> None:  # noqa: ANN401
    """Save as PNG with a palette, at a third of the size."""
    from io import BytesIO

    from PIL import Image

    data = BytesIO()
    canvas.savefig(data, format="png", dpi=DPI, facecolor="white")
    Image.open(data).convert("RGB").quantize(96, dither=Image.Dither.NONE).save(path, format="png", optimize=True)


def _panel(axes: Axes, figure: Figure, panel: str, simulations: Simulations) -> None:
    """Make each line thinner than those before, so that coinciding lines stay visible."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter, NullLocator

    values: list[float] = []
    for place, name in enumerate(figure.mechanisms):
        times = [simulations[figure.config(panel, name, x)] for x in figure.x]
        if figure.gain:
            alone = [simulations[figure.config(panel, m.SERVER, x)] for x in figure.x]
            times = [base / time for base, time in zip(alone, times, strict=True)]
        values += times
        left = 1 - place / len(figure.mechanisms)
        colour, line, marker = _STYLES[name]
        width, size = 1.2 + 1.8 * left, 3.5 + 3.5 * left
        axes.plot(
            figure.x, times, label=name, color=colour, linestyle=line, linewidth=width, marker=marker, markersize=size
        )
    axes.set_xscale("log")
    axes.set_xticks(list(figure.x), [f"{x:g}" for x in figure.x])
    axes.xaxis.set_minor_locator(NullLocator())
    if max(values) > 5 * min(values):
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.yaxis.set_minor_formatter(NullFormatter())
    else:
        axes.set_ylim(bottom=0)
    axes.grid(color="0.92")
    axes.set_axisbelow(True)
