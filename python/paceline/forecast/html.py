"""A plot and its figures as one self-contained HTML page."""

from __future__ import annotations

import html
import io
from collections.abc import Sequence
from typing import TYPE_CHECKING

from paceline._internal import units
from paceline.forecast.plotting import save
from paceline.forecast.simulate import Result

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_STYLE = """
body { font: 15px/1.4 system-ui, sans-serif; margin: 2em auto; max-width: 72em; padding: 0 1em; color: #222; }
svg { max-width: 100%; height: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: .25em .9em; text-align: right; border-bottom: 1px solid #ddd; }
th { text-align: right; vertical-align: bottom; } .name { text-align: left; }
"""
_HEADS = ["servers", "workers", "bandwidth", "iteration", "samples/s", "scaling efficiency", "exposed communication"]
HEADER = '<th class="name">strategy</th>' + "".join(f"<th>{head}</th>" for head in _HEADS)


def page(results: Sequence[Result], drawn: Figure) -> str:
    """Return the page's HTML, which loads nothing."""
    out = io.BytesIO()
    save(drawn, out, "svg")
    svg = out.getvalue().decode()
    title = html.escape(f"{results[0].trace} — a forecast by paceline")
    rows = "\n".join(row(result) for result in results)
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f"<title>{title}</title><style>{_STYLE}</style></head>\n"
        f"<body><h1>{title}</h1>\n{svg[svg.index('<svg') :]}\n"
        f"<table><thead><tr>{HEADER}</tr></thead><tbody>\n{rows}\n</tbody></table></body></html>\n"
    )


def summary(result: Result) -> str:
    """Return a table of one result, which notebooks show."""
    from paceline.forecast.bottleneck import path
    from paceline.forecast.table import range_of, rate_of

    found = result.interval
    scaling = "–" if result.scaling_efficiency is None else units.percent(result.scaling_efficiency)
    bus = result.bus_bandwidth_bps
    lines = {
        "workers": str(result.workers),
        "servers": str(result.servers) if result.servers else "",
        "cluster": f"{result.cluster}, {rate_of(result)}, latency {units.duration(result.latency_s)}",
        "GPUs per node": str(result.gpus_per_node),
        "library": result.library,
        "buckets": f"{result.buckets}, {units.size(result.gradient_bytes)} of gradients",
        "iteration": units.duration(result.iteration_s),
        f"{found.level * 100:.0f} % interval" if found else "interval": range_of(found) if found else result.evidence,
        "samples/s": "" if result.samples_per_s is None else units.digits(result.samples_per_s),
        "scaling efficiency": scaling,
        "exposed communication": units.duration(result.exposed_communication_s),
        "bus bandwidth": "" if bus is None else units.rate(bus),
        "bottleneck": path(result) if result.critical_path else "",
        "notes": "; ".join(result.notes),
    }
    rows = "".join(
        f'<tr><th style="text-align: left">{name}</th><td style="text-align: left">{html.escape(value)}</td></tr>'
        for name, value in lines.items()
        if value
    )
    caption = html.escape(f"{result.trace}, {result.strategy}")
    return f"<table><caption>{caption}</caption><tbody>{rows}</tbody></table>"


def row(result: Result, attributes: str = "") -> str:
    """Return a row of the table of results: strategy, servers, workers, bandwidth, times."""
    cells = [
        str(result.servers or "–"),
        str(result.workers),
        units.rate(result.bandwidth_bps),
        units.duration(result.iteration_s),
        "–" if result.samples_per_s is None or not result.compute_s else units.digits(result.samples_per_s),
        "–" if result.scaling_efficiency is None else units.percent(result.scaling_efficiency),
        units.duration(result.exposed_communication_s),
    ]
    how = result.strategy if result.coordinator is None else f"{result.strategy}, {result.coordinator}"
    name = f'<td class="name">{html.escape(how)}</td>'
    return f"<tr{attributes}>{name}{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>"
