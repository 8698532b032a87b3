"""The study's figures: iteration time against bandwidth, workers and servers; speedup against modules and computation.

Published values stand beside the simulated lines wherever a table has the line's configuration.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline._internal.files import replaced
from paceline.forecast.output import style

from paceline_lab.studies.network_operator import mechanisms as m
from paceline_lab.studies.network_operator.mechanisms import configured, strategy_of
from paceline_lab.studies.network_operator.published import (
    MODELS,
    TABLE_1_GBPS,
    TABLE_1_SERVERS,
    TITLES,
    rows,
    table_1,
    table_1_config,
)
from paceline_lab.studies.network_operator.runs import Config, Simulations

if TYPE_CHECKING:
    from matplotlib.axes import Axes

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
    # Speedup over the parameter server alone, instead of seconds.
    gain: bool = False

    def configs(self) -> list[Config]:
        """Return the configurations to simulate for it."""
        names = [*self.mechanisms, m.SERVER] if self.gain else self.mechanisms
        return [self.config(panel, name, x) for panel in self.panels for name in names for x in self.x]


_MODEL_PANELS = {model: TITLES[model] for model in MODELS}
FIGURES = (
    Figure(
        "bandwidth.png",
        "Iteration time by bandwidth: 32 workers, one parameter server",
        "bandwidth (Gbit/s)",
        _BANDWIDTHS,
        _MODEL_PANELS,
        m.MECHANISMS,
        _by_bandwidth,
    ),
    Figure(
        "workers.png",
        "Iteration time by workers: 25 Gbit/s, one parameter server",
        "workers",
        _WORKERS,
        _MODEL_PANELS,
        m.MECHANISMS,
        _by_workers,
    ),
    Figure(
        "modules.png",
        "Speedup over the server alone by modules added to Inception-v3: 32 workers, 25 Gbit/s",
        "added modules",
        _MODULES,
        {"compute": "compute-heavy modules", "network": "network-heavy modules"},
        _GAINS,
        _by_modules,
        gain=True,
    ),
    Figure(
        "compute.png",
        "Speedup over the server alone by speed of computation: 32 workers, 25 Gbit/s",
        "compute speedup",
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
    published = _published()
    drawn = [_draw(figure, simulations, published, folder / figure.file) for figure in FIGURES]
    return [*drawn, _draw_servers(simulations, folder / "servers.png")]


def _published() -> dict[Config, float]:
    """Return published seconds by configuration: those of the tables, and the server's divided by a speedup."""
    plain = [row for row in rows() if row.times == 1 and not row.offset]
    seconds = {row.config: row.published for row in plain if row.over is None}
    for row in plain:
        if row.over in seconds:
            seconds.setdefault(row.config, seconds[row.over] / row.published)
    return seconds


def _published_gains(seconds: dict[Config, float]) -> dict[Config, float]:
    gains = {row.config: row.published for row in rows() if row.unit == "x" and not row.calibrated}
    for config, own in seconds.items():
        alone = replace(config, strategy="ps", chunk=None, servers=None, slices=None)
        if alone in seconds:
            gains.setdefault(config, seconds[alone] / own)
    return gains


def _draw(figure: Figure, simulations: Simulations, published: dict[Config, float], path: Path) -> Path:
    height = (len(figure.panels) + 1) // 2
    given = _published_gains(published) if figure.gain else published
    with style.context():
        canvas = style.new_figure(14.0, 0.9 + 3.3 * height)
        grid: Any = canvas.subplots(height, 2, squeeze=False)
        for axes, (panel, title) in zip(grid.flat, figure.panels.items(), strict=True):
            _panel(axes, figure, panel, simulations, given)
            axes.set_title(title, fontsize="medium")
        for row in grid:
            row[0].set_ylabel("speedup over the server alone" if figure.gain else "iteration time (s)")
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


def _look(mechanism: str) -> style.Look:
    look = style.strategy(strategy_of(mechanism))
    return replace(look, line=":") if mechanism == m.RING_WHOLE else look


def _panel(axes: Axes, figure: Figure, panel: str, simulations: Simulations, published: dict[Config, float]) -> None:
    lines, values, marks = [], [], 0
    for name in figure.mechanisms:
        times = [simulations[figure.config(panel, name, x)] for x in figure.x]
        if figure.gain:
            alone = [simulations[figure.config(panel, m.SERVER, x)] for x in figure.x]
            times = [base / time for base, time in zip(alone, times, strict=True)]
        lines.append(style.Line(name, figure.x, times, _look(name)))
        values += times
    entries = style.draw_lines(axes, lines)
    for name in figure.mechanisms:
        points = [(x, given) for x in figure.x if (given := published.get(figure.config(panel, name, x))) is not None]
        style.draw_published(axes, [x for x, _ in points], [y for _, y in points], _look(name))
        values += [y for _, y in points]
        marks += len(points)
    style.x_axis(axes, figure.x, figure.x_label)
    style.y_axis(axes, values, log=None if figure.gain else max(values) > 5 * min(values))
    entries += style.sources() if marks else []
    style.legend(axes, entries, loc="center left", bbox_to_anchor=(1.0, 0.5))


def _draw_servers(simulations: Simulations, path: Path) -> Path:
    """Draw Table 1: its simulated and real times beside ours."""
    look = style.strategy("ps")
    real = replace(look, marker="s")
    with style.context():
        canvas = style.new_figure(13.0, 3.6)
        grid: Any = canvas.subplots(1, len(MODELS))
        for axes, model in zip(grid, MODELS, strict=True):
            times = [simulations[table_1_config(model, servers)] for servers in TABLE_1_SERVERS]
            entries = style.draw_lines(axes, [style.Line("simulated here", TABLE_1_SERVERS, times, look)])
            published = {"simulated": look, "real": real}
            for source, own in published.items():
                style.draw_published(axes, TABLE_1_SERVERS, table_1(model, source), own)
            style.x_axis(axes, TABLE_1_SERVERS, "parameter servers")
            style.y_axis(
                axes, [*times, *(value for source in published for value in table_1(model, source))], log=False
            )
            axes.set_title(TITLES[model], fontsize="medium")
        grid[0].set_ylabel("iteration time (s)")
        marks = [(style.hollow_key(look), "published, simulated"), (style.hollow_key(real), "published, real runs")]
        style.legend(canvas, [*entries, *marks], loc="outside lower center", ncols=3)
        canvas.suptitle(f"Iteration time by servers with TensorFlow's assignment: 8 workers, {TABLE_1_GBPS} Gbit/s")
        with replaced(path) as temporary:
            _save(canvas, temporary)
    return path
