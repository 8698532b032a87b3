"""A plot and its figures as one self-contained HTML page."""

from __future__ import annotations

import html
import io
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from paceline._internal import units
from paceline._internal.block import Fact, Pair
from paceline.catalog.libraries import NONE
from paceline.forecast.output.plotting import noun_of, save
from paceline.forecast.result import Result
from paceline.forecast.wording.bottleneck import path
from paceline.forecast.wording.rows import buckets, compression_label, compute_alone, interval, network
from paceline.forecast.wording.sharding import TIGHT_LEGEND, chance, need
from paceline.forecast.wording.terms import sharding_cell, strategy
from paceline.forecast.wording.verdict import Answer

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
FACTS_STYLE = """
.facts { display: grid; grid-template-columns: max-content 1fr; gap: .1em 1.2em; margin: .5em 0 1em; }
.facts dt { grid-column: 1; color: #555; } .facts dd { grid-column: 2; margin: 0; }
.facts b { display: inline-block; min-width: 4.5em; font-weight: 600; }
.bad { color: #a00; }
@media (max-width: 40rem) { .facts { display: block; } .facts dd { margin: 0 0 .2em 1em; } }
"""
_SCALING, _EXPOSED, _MEMORY = "scaling", "exposed", "memory per GPU"


def page(results: Sequence[Result], drawn: Figure, noun: str = "") -> str:
    """Return the page's HTML, which loads nothing. `noun`: what ranks are called, as in the plot."""
    out = io.BytesIO()
    save(drawn, out, "svg")
    svg = out.getvalue().decode()
    title = html.escape(f"{results[0].trace}: a forecast by Paceline")
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f"<title>{title}</title><style>{_STYLE}{LEGEND_STYLE}</style></head>\n"
        f"<body><h1>{title}</h1>\n{svg[svg.index('<svg') :]}\n"
        f"{table(results, noun=noun_of(results, noun))}\n{legend(results)}</body></html>\n"
    )


def facts(some: Sequence[Fact]) -> str:
    """Return facts as a list of labels and values."""
    lines = [f"<dt>{html.escape(one.label)}</dt>{''.join(map(_value, one.values))}" for one in some]
    return f'<dl class="facts">{"".join(lines)}</dl>' if lines else ""


def _value(value: str | Pair) -> str:
    if isinstance(value, str):
        return f"<dd>{html.escape(value)}</dd>"
    figure, text = map(html.escape, value)
    return f"<dd><b>{figure}</b> {text}</dd>"


def answer(one: Answer) -> str:
    """Return an answer without its notes: headline, facts, and what to type where it does not fit."""
    if one.fits:
        return f"<p><strong>{html.escape(one.headline)}</strong></p>{facts(one.facts)}"
    remedy = f"<p>try: <code>{html.escape(one.remedy)}</code></p>" if one.remedy else ""
    return (
        f'<p><strong class="bad">{html.escape(one.headline)}</strong></p>{facts(one.memory)}{remedy}'
        f"<p><strong>{html.escape(one.otherwise)}</strong></p>{facts(one.facts)}"
    )


def notes(texts: Sequence[str]) -> str:
    """Return notes, each once."""
    lines = "".join(f"<li>{html.escape(text)}</li>" for text in dict.fromkeys(texts))
    return f'<ul class="notes">{lines}</ul>' if lines else ""


def table(results: Sequence[Result], best: Collection[int] = (), noun: str = "worker") -> str:
    """Return a table of results, in order; `best`: the places of rows to stand out; `noun`: what ranks are called."""
    memory, served = _has_memory(results), any(result.servers for result in results)
    tokens = any(result.tokens_per_s_per_gpu is not None for result in results)
    heads = [
        "strategy",
        *(["servers"] if served else []),
        f"{noun}s",
        "bandwidth",
        "iteration",
        *(["tokens/s per GPU", "MFU"] if tokens else ["samples/s"]),
        _SCALING,
        _EXPOSED,
    ]
    first, *others = [*heads, *([_MEMORY] if memory else [])]
    rows = "\n".join(
        _row(
            result,
            _besides(result, results),
            ' class="best"' if place in best else "",
            memory=memory,
            served=served,
            tokens=tokens,
        )
        for place, result in enumerate(results)
    )
    head = f'<th class="name">{first}</th>{"".join(f"<th>{other}</th>" for other in others)}'
    return f"<table><thead><tr>{head}</tr></thead><tbody>\n{rows}\n</tbody></table>"


def legend(results: Sequence[Result]) -> str:
    """Return what the columns of the table mean that do not explain themselves; empty if there are none."""
    entries = {}
    if any(result.compute_s > 0 for result in results):
        entries = {
            _SCALING: "samples/s per rank, relative to one rank alone; 100% is linear",
            _EXPOSED: "communication that compute does not hide: iteration time minus compute time of one rank alone",
        }
    if _has_memory(results):
        parts = ["parameters", "gradients", "optimizer states", "gathered FSDP units", "communication buffers"]
        plans = [result.sharded for result in results if result.sharded is not None]
        without = any(plan.memory.activations_bytes is None for plan in plans)
        known = ", without activations, which the trace does not have" if without else ""
        marks = [
            *(["! does not fit"] if any(plan.fits is False for plan in plans) else []),
            *([f"~ {TIGHT_LEGEND}"] if any(plan.is_tight for plan in plans) else []),
        ]
        held = f"at its peak: {units.listed([*parts, *([] if without else ['activations'])])}{known}"
        entries[_MEMORY] = "; ".join([held, *marks])
    lines = "".join(f"<dt>{name}</dt><dd>{html.escape(text)}</dd>" for name, text in entries.items())
    return f'<dl class="legend">{lines}</dl>' if lines else ""


def _has_memory(results: Sequence[Result]) -> bool:
    return any(result.sharded is not None for result in results)


def summary(result: Result) -> str:
    """Return a table of one result, which notebooks show."""
    bus, own, noun = result.bus_bandwidth_bps, result.sharded, noun_of([result])
    computes = result.compute_s > 0 and result.samples_per_s is not None
    rate = f", {units.digits(result.samples_per_s or 0.0)} samples/s" if computes else ""
    scaling, alone = result.scaling_efficiency, compute_alone(result)
    where = [units.count(result.workers, noun), *([units.count(result.servers, "server")] if result.servers else [])]
    where += [result.cluster, network(result, None), *([] if result.library == NONE else [result.library])]
    where.append(f"{units.size(result.gradient_bytes)} of gradients in {units.count(result.buckets, 'bucket')}")
    lines = {
        "Iteration" if computes else "Time": f"{units.duration(result.iteration_s)}{rate}",
        "Bus bandwidth": "" if bus is None else units.rate(bus),
        "Scaling": "" if scaling is None else f"{units.percent(scaling)} of linear ({alone})",
        "Likely": interval(result),
        "Memory": "" if own is None else need(own) + ("" if own.verdict is None else f": {own.verdict}{chance(own)}"),
        "Bottleneck": path(result, noun) if result.critical_path else "",
        "Exposed": f"{units.duration(result.exposed_communication_s)} of communication" if computes else "",
        "Setup": ", ".join(where),
        "Notes": "; ".join(result.notes),
    }
    rows = "".join(
        f'<tr><th style="text-align: left">{name}</th><td style="text-align: left">{html.escape(value)}</td></tr>'
        for name, value in lines.items()
        if value
    )
    caption = html.escape(f"{result.trace}, {strategy(result.strategy)}")
    return f"<table><caption>{caption}</caption><tbody>{rows}</tbody></table>"


def _besides(result: Result, among: Sequence[Result]) -> list[str]:
    """Return what differs between rows and has no column."""
    words = {
        "library": result.library,
        "bucket_size": buckets(result),
        "latency_s": f"latency {units.duration(result.latency_s)}",
    }
    return [word for field, word in words.items() if len({getattr(other, field) for other in among}) > 1]


def _memory(result: Result) -> str:
    own = result.sharded
    if own is None:
        return "–"
    return units.memory(own.memory.total_bytes) + (" !" if own.fits is False else " ~" if own.is_tight else "")


def _row(result: Result, besides: Sequence[str], attributes: str, *, memory: bool, served: bool, tokens: bool) -> str:
    """Return a row: strategy, servers, ranks, bandwidth, times and rates, and the memory of a GPU."""
    rate = result.tokens_per_s_per_gpu if tokens else result.samples_per_s if result.compute_s else None
    cells = [
        *([str(result.servers or "–")] if served else []),
        f"{result.workers:,}",
        units.rate(result.bandwidth_bps),
        units.duration(result.iteration_s, 4),
        "–" if rate is None else units.digits(rate),
        *(["–" if result.mfu is None else units.percent(result.mfu)] if tokens else []),
        "–" if result.scaling_efficiency is None else units.percent(result.scaling_efficiency),
        units.duration(result.exposed_communication_s, 4),
        *([_memory(result)] if memory else []),
    ]
    planned = None if result.sharded is None else sharding_cell(result.sharded.sharding)
    words = [strategy(result.strategy), planned, compression_label(result), result.coordinator, *besides]
    name = f'<td class="name">{html.escape(", ".join(word for word in words if word))}</td>'
    return f"<tr{attributes}>{name}{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>"


Result._shown = staticmethod(summary)  # what notebooks show
