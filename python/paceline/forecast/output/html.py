"""A plot and its figures as one self-contained HTML page."""

from __future__ import annotations

import html
import io
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from paceline._internal import units
from paceline.forecast import sharding
from paceline.forecast.output.plotting import save
from paceline.forecast.result import Result
from paceline.forecast.wording.bottleneck import path
from paceline.forecast.wording.rows import compression_label, range_of, rate_of
from paceline.forecast.wording.sharding import memory_text

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_STYLE = """
body { font: 15px/1.4 system-ui, sans-serif; margin: 2em auto; max-width: 72em; padding: 0 1em; color: #222; }
svg { max-width: 100%; height: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: .25em .9em; text-align: right; border-bottom: 1px solid #ddd; }
th { text-align: right; vertical-align: bottom; } .name { text-align: left; }
"""
LEGEND_STYLE = """
.legend { display: grid; grid-template-columns: max-content 1fr; gap: 0 1em; font-size: .85rem; color: #555; }
.legend dd { margin: 0; }
@media (max-width: 40rem) { .legend { display: block; } .legend dd { margin: 0 0 .3em 1em; } }
"""
_HEADS = ["servers", "workers", "bandwidth", "iteration", "samples/s", "scaling efficiency", "exposed communication"]
_MEMORY = "memory per GPU"


def page(results: Sequence[Result], drawn: Figure) -> str:
    """Return the page's HTML, which loads nothing."""
    out = io.BytesIO()
    save(drawn, out, "svg")
    svg = out.getvalue().decode()
    title = html.escape(f"{results[0].trace} — a forecast by paceline")
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f"<title>{title}</title><style>{_STYLE}{LEGEND_STYLE}</style></head>\n"
        f"<body><h1>{title}</h1>\n{svg[svg.index('<svg') :]}\n"
        f"{table(results)}\n{legend(results)}</body></html>\n"
    )


def table(results: Sequence[Result], best: Collection[int] = ()) -> str:
    """Return a table of results, in order; `best`: the places of rows to stand out."""
    memory = _has_memory(results)
    heads = "".join(f"<th>{head}</th>" for head in [*_HEADS, *([_MEMORY] if memory else [])])
    rows = "\n".join(
        _row(result, _besides(result, results), ' class="best"' if place in best else "", memory=memory)
        for place, result in enumerate(results)
    )
    head = f'<th class="name">strategy</th>{heads}'
    return f"<table><thead><tr>{head}</tr></thead><tbody>\n{rows}\n</tbody></table>"


def legend(results: Sequence[Result]) -> str:
    """Return what the columns of the table mean that do not explain themselves; empty if there are none."""
    entries = {}
    if any(result.compute_s > 0 for result in results):
        entries = {
            "scaling efficiency": "samples/s, divided by workers times the samples/s of one worker alone; 100 % is "
            "linear scaling",
            "exposed communication": "what an iteration takes beyond the computation of one worker alone",
        }
    if _has_memory(results):
        parts = ["parameters", "gradients", "optimizer states", "gathered units", "communication buffers"]
        plans = [result.sharded for result in results if result.sharded is not None]
        without = any(plan.memory.activations_bytes is None for plan in plans)
        known = ", without activations, which the trace does not have" if without else ""
        entries[_MEMORY] = (
            f"at the peak of an iteration: {units.listed([*parts, *([] if without else ['activations'])])}{known}"
        )
        if any(plan.fits is False for plan in plans):
            entries[_MEMORY] += "; ! does not fit"
    lines = "".join(f"<dt>{name}</dt><dd>{html.escape(text)}</dd>" for name, text in entries.items())
    return f'<dl class="legend">{lines}</dl>' if lines else ""


def _has_memory(results: Sequence[Result]) -> bool:
    return any(result.sharded is not None for result in results)


def summary(result: Result) -> str:
    """Return a table of one result, which notebooks show."""
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


def _besides(result: Result, among: Sequence[Result]) -> list[str]:
    """Return what differs between rows and has no column."""
    words = {
        "library": result.library,
        "bucket_size": "no fusion" if result.bucket_size is None else f"buckets of {units.size(result.bucket_size)}",
        "latency_s": f"latency {units.duration(result.latency_s)}",
    }
    return [word for field, word in words.items() if len({getattr(other, field) for other in among}) > 1]


def _row(result: Result, besides: Sequence[str], attributes: str, *, memory: bool) -> str:
    """Return a row: strategy, servers, workers, bandwidth, times, and the memory of a GPU."""
    cells = [
        str(result.servers or "–"),
        str(result.workers),
        units.rate(result.bandwidth_bps),
        units.duration(result.iteration_s),
        "–" if result.samples_per_s is None or not result.compute_s else units.digits(result.samples_per_s),
        "–" if result.scaling_efficiency is None else units.percent(result.scaling_efficiency),
        units.duration(result.exposed_communication_s),
        *([memory_text(result)] if memory else []),
    ]
    planned = None if result.sharded is None else result.sharded.sharding
    planned = "no sharding" if planned == sharding.NONE else planned
    words = [result.strategy, planned, compression_label(result), result.coordinator, *besides]
    name = f'<td class="name">{html.escape(", ".join(word for word in words if word))}</td>'
    return f"<tr{attributes}>{name}{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>"


Result._shown = staticmethod(summary)  # what notebooks show
