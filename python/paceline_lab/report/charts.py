"""A chapter's charts, narrow enough to be read on a phone: scaling, efficiency, ranking, breakdown, timeline."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from paceline._internal import units
from paceline.forecast.output import plotting, style
from paceline.forecast.result import Result
from paceline.forecast.verdict.groups import is_too_large
from paceline.forecast.wording import terms
from paceline.forecast.wording.rows import distinct
from paceline.forecast.wording.sharding import held_bytes

from paceline_lab.report.chapters import Simulated
from paceline_lab.report.lanes import draw as draw_lanes

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Inches; at 96 pixels per inch, the width of a phone.
_WIDTH = 4.4
_TIMELINE_WIDTH = 5.6


@dataclass(frozen=True)
class Chart:
    """A drawn figure; `name` for its file, `says` for its alternative text."""

    name: str
    title: str
    says: str
    drawn: Figure


def charts(chapter: Simulated) -> Iterator[Chart]:
    """Return the charts of a chapter's runs."""
    with style.context():
        yield from _curves(chapter)
        ranked = chapter.largest.fastest_first()
        first = ranked[0]
        noun = plotting.noun_of(chapter.results, chapter.chapter.prepared.noun)
        at = f"{units.count(first.workers, noun)}, {units.rate(first.bandwidth_bps)}"
        yield Chart(
            "ranking",
            f"{_ranked_by(ranked)}: {at}",
            f"Fastest first: {', '.join(f'{distinct(it, ranked)} {units.duration(it.iteration_s)}' for it in ranked)}",
            _untitled(plotting.bars(ranked, noun, _WIDTH)),
        )
        yield Chart(
            "breakdown",
            f"Critical path: {at}",
            f"Parts of the critical path; {distinct(first, ranked)}: "
            + ", ".join(f"{terms.part(part.part)} {units.duration(part.seconds)}" for part in first.critical_path),
            _breakdown(ranked),
        )
        if first.sharded is not None:
            yield _memory(ranked, at)
        if chapter.shown is not None:
            shown = chapter.shown
            name = distinct(shown, chapter.results)
            what = f"{name}, {units.count(shown.workers, noun)}, {units.rate(shown.bandwidth_bps)}"
            yield Chart(
                "timeline",
                f"One iteration: {what}",
                f"Iteration of {units.duration(shown.iteration_s)}, {units.duration(shown.exposed_communication_s)} of "
                "it exposed communication",
                draw_lanes(chapter.events, _TIMELINE_WIDTH),
            )


def _ranked_by(results: Sequence[Result]) -> str:
    return "Strategies" if len({result.strategy for result in results}) > 1 else "Shardings"


def _untitled(drawn: Figure) -> Figure:
    """Remove the title, which the page has above the chart."""
    drawn.suptitle("")
    return drawn


def _curves(chapter: Simulated) -> Iterator[Chart]:
    """Draw throughput and efficiency for each bandwidth and compute speedup, if workers vary."""
    if len({result.workers for result in chapter.results}) < 2:
        return
    settings = dict.fromkeys((result.bandwidth_bps, result.compute_speedup) for result in chapter.results)
    for number, (bandwidth, speedup) in enumerate(settings, start=1):
        own = [it for it in chapter.results if (it.bandwidth_bps, it.compute_speedup) == (bandwidth, speedup)]
        at = units.rate(bandwidth) + (f", {speedup:g}x compute speed" if speedup != 1 else "")
        suffix = f"-{number}" if len(settings) > 1 else ""
        best = max(own, key=lambda result: (result.workers, -result.iteration_s))
        noun = plotting.noun_of(own, chapter.chapter.prepared.noun)
        says = f"{distinct(best, own)}, {units.count(best.workers, noun)}: {units.duration(best.iteration_s)}"
        if all(result.tokens_per_s_per_gpu is not None for result in own):
            # Those that do not fit have no rate.
            able = [result for result in own if not is_too_large(result)] or own
            rate = _lines(able, noun, "tokens/s per GPU", lambda it: it.tokens_per_s_per_gpu)
            yield Chart(f"scaling{suffix}", f"Throughput: {at}", says, rate)
            if all(result.mfu is not None for result in able):
                share = _lines(able, noun, "MFU (%)", lambda it: 100 * (it.mfu or 0))
                yield Chart(f"efficiency{suffix}", f"MFU: {at}", says, share)
        elif any(result.compute_s > 0 for result in own):
            yield Chart(f"scaling{suffix}", f"Throughput: {at}", says, _lines(own, noun, "samples/s", _samples))
            yield Chart(f"efficiency{suffix}", f"Scaling: {at}", says, _lines(own, noun, "% of linear", _efficiency))
        else:
            label, value = plotting.iteration_time(own)
            yield Chart(f"scaling{suffix}", f"All-reduce: {at}", says, _lines(own, noun, label, value))


def _samples(result: Result) -> float | None:
    return result.samples_per_s


def _efficiency(result: Result) -> float | None:
    return None if result.scaling_efficiency is None else 100 * result.scaling_efficiency


def _lines(results: Sequence[Result], noun: str, label: str, value: Callable[[Result], float | None]) -> Figure:
    drawn = style.new_figure(_WIDTH, 4.6)
    axes = drawn.add_subplot()
    fastest = _fastest_servers(results)
    entries = plotting.draw_lines(axes, fastest, "workers", 1.0, value)
    if value is _samples:
        entries += plotting.draw_ideal(axes, fastest, "workers", 1.0)
    axes.set_ylabel(label)
    log = style.x_axis(axes, [result.workers for result in results], f"{noun}s")
    # Linear scaling is a line where both axes are of one kind.
    style.y_axis(axes, [value(result) for result in results], log=log if value is _samples else None)
    _legend(drawn, entries)
    return drawn


def _fastest_servers(results: Sequence[Result]) -> list[Result]:
    """Keep the fastest number of servers for each number of workers, so that each way has one line."""
    best: dict[tuple[str, int], Result] = {}
    for result in results:
        key = (distinct(result, results, servers=False), result.workers)
        if key not in best or result.iteration_s < best[key].iteration_s:
            best[key] = result
    return list(best.values())


def _legend(drawn: Figure, entries: Sequence[style.Entry]) -> None:
    wide = any(len(label) > 24 for _, label in entries)
    style.legend(drawn, entries, loc="outside lower center", ncols=1 if wide else 2)


def _breakdown(ranked: Sequence[Result]) -> Figure:
    """Draw the parts of each strategy's critical path."""
    unit, word = units.time_unit(result.iteration_s for result in ranked)
    shares: list[dict[str, float]] = [{} for _ in ranked]
    for own, result in zip(shares, ranked, strict=True):
        for part in result.critical_path:
            name = terms.part(part.part)
            own[name] = own.get(name, 0.0) + part.seconds
    return _stacked(ranked, shares, style.PARTS, unit, f"critical path ({word})")


def memory_of(result: Result) -> dict[str, int]:
    """Return the bytes that a GPU holds at the peak of an iteration, by kind; empty if that is not forecast."""
    if result.sharded is None:
        return {}
    return held_bytes(result.sharded)


def _memory(ranked: Sequence[Result], at: str) -> Chart:
    """Draw what a GPU holds at the peak of an iteration, and how much it has."""
    drawn = _stacked(ranked, [memory_of(result) for result in ranked], style.MEMORY, 1e9, "memory (GB)")
    peaks = [f"{distinct(it, ranked)} {units.memory(it.sharded.memory.peak_bytes)}" for it in ranked if it.sharded]
    says = f"Memory per GPU: {', '.join(peaks)}"
    capacity = ranked[0].sharded.capacity_bytes if ranked[0].sharded is not None else None
    if capacity is not None:
        drawn.axes[0].axvline(capacity / 1e9, color=style.REFERENCE, linestyle="--")
        says += f" of {units.memory(capacity)} (dashed)"
    return Chart("memory", f"Memory per GPU: {at}", says, drawn)


def _stacked(
    ranked: Sequence[Result],
    shares: Sequence[Mapping[str, float]],
    colors: Mapping[str, str],
    unit: float,
    word: str,
) -> Figure:
    """Draw the shares of each result, stacked."""
    drawn = style.new_figure(_WIDTH, 1.9 + 0.36 * len(ranked))
    axes = drawn.add_subplot()
    left = [0.0] * len(ranked)
    entries: list[style.Entry] = []
    for name in dict.fromkeys(name for own in shares for name, value in own.items() if value):
        widths = [own.get(name, 0.0) / unit for own in shares]
        entries.append((axes.barh(range(len(ranked)), widths, left=left, color=colors[name]), name))
        left = [before + width for before, width in zip(left, widths, strict=True)]
    axes.set_yticks(range(len(ranked)), [distinct(result, ranked) for result in ranked])
    axes.invert_yaxis()
    axes.set_xlabel(word)
    style.grid(axes, "x")
    _legend(drawn, entries)
    return drawn
