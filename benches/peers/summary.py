"""Statistics and tables, computed from the results alone."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

Rounds = Sequence[float | None]  # seconds per call, a number for each round; None where the job failed
KIB, MIB = 1 << 10, 1 << 20


@dataclass(frozen=True)
class Spread:
    """Median and range of several numbers."""

    median: float
    low: float
    high: float

    def __str__(self) -> str:
        """As `3.1 (2.8–3.3)`."""
        return f"{factor(self.median)} ({factor(self.low)}–{factor(self.high)})"


def spread(numbers: Sequence[float]) -> Spread:
    """Of at least one number."""
    return Spread(statistics.median(numbers), min(numbers), max(numbers))


def slowest(ranks: Sequence[Sequence[float]]) -> float:
    """The median over batches of the slowest rank's time, from each rank's times of the same batches."""
    return statistics.median(max(times) for times in zip(*ranks, strict=True))


def middle(rounds: Rounds) -> float | None:
    """The median over the rounds that were measured."""
    known = [seconds for seconds in rounds if seconds is not None]
    return statistics.median(known) if known else None


def better(peers: Sequence[Rounds]) -> list[float | None]:
    """The best of several peers in each round."""
    return [min((time for time in times if time is not None), default=None) for times in zip(*peers, strict=True)]


def faster(peer: Rounds, ours: Rounds) -> Spread | None:
    """How many times as fast as the peer we are, within each round, so that a slow minute slows both."""
    ratios = [
        theirs / own for theirs, own in zip(peer, ours, strict=True) if theirs is not None and own is not None and own
    ]
    return spread(ratios) if ratios else None


def bus_bandwidth(size: int, ranks: int, seconds: float) -> float:
    """GB/s: 2 (n - 1) / n of the buffer, which each rank in any all-reduce must send or receive, over the time."""
    return 2 * (ranks - 1) / ranks * size / seconds / 1e9


def moved_bytes(size: int, ranks: int) -> float:
    """Bytes that all ranks together must load and store, where a rank stores into its own memory only.

    For each element, n loads and a store make the sum somewhere, and the n - 1 other ranks each load and store it:
    3n - 1 accesses for n ranks, so (3n - 1) S bytes; 5 S for two ranks.
    """
    return (3 * ranks - 1) * size


def least_seconds(size: int, ranks: int, cores: int, copied_per_core: float) -> float:
    """The shortest time: a copy loads and stores each byte, so min(n, cores) cores move twice what they copy."""
    return moved_bytes(size, ranks) / (2 * copied_per_core * min(ranks, cores))


def size_text(size: int) -> str:
    """As `4 KiB`."""
    return f"{size // MIB} MiB" if size >= MIB else f"{size // KIB} KiB"


def microseconds(seconds: float | None) -> str:
    """As `4.1`, `276`, `10.8k`."""
    if seconds is None:
        return "–"
    value = seconds * 1e6
    if value < 99.95:
        return f"{value:.1f}"
    if value < 9999.5:
        return f"{value:.0f}"
    return f"{value / 1e3:.1f}k" if value < 99950 else f"{value / 1e3:.0f}k"


def factor(number: float) -> str:
    """Three digits or fewer."""
    return f"{number:.2f}" if number < 9.995 else f"{number:.1f}" if number < 99.95 else f"{number:.0f}"


@dataclass(frozen=True)
class Table:
    """Cells of text, for a terminal or for Markdown."""

    title: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]

    def markdown(self) -> str:
        """The title and the table."""
        lines = [self.header, ["---"] * len(self.header), *self.rows]
        return "\n".join([f"{self.title}:", "", *(f"| {' | '.join(cells)} |" for cells in lines)])


@dataclass(frozen=True)
class Comparison:
    """Which systems a table compares: ours with the better of `peers`; `others` are only shown."""

    title: str
    ours: str
    peers: tuple[str, ...]
    others: tuple[str, ...] = ()
    versus: str = ""


def all_reduce_table(
    comparison: Comparison,
    ranks: int,
    times: Mapping[str, Mapping[int, Rounds]],
    titles: Mapping[str, str],
    limits: Mapping[int, Rounds] | None = None,
) -> Table | None:
    """Microseconds by size, speed relative to the better peer, and time relative to the limit; None without peers."""
    shown = [name for name in (*comparison.peers, *comparison.others, comparison.ours) if name in times]
    peers = [name for name in comparison.peers if name in times]
    if not peers:
        return None
    ours = times.get(comparison.ours)
    header = ["size", *(titles[name] for name in shown)]
    header += [f"times as fast as {comparison.versus}"] * bool(ours)
    header += ["limit", "ours / limit"] if limits and ours else ["limit"] if limits else []
    rows = []
    for size in sorted({size for name in shown for size in times[name]}):
        row = [size_text(size), *(microseconds(middle(times[name].get(size, ()))) for name in shown)]
        if ours:
            own = ours.get(size, ())
            measured = [times[name][size] for name in peers if size in times[name]]
            ratio = faster(better(measured), own) if measured and own else None
            row.append(str(ratio) if ratio else "–")
        if limits:
            least = limits.get(size, ())
            row.append(microseconds(middle(least)))
            distance = faster(ours[size], least) if ours and size in ours and least else None
            row += [str(distance) if distance else "–"] * bool(ours)
        rows.append(row)
    return Table(f"{comparison.title}, {ranks} ranks, microseconds", header, rows)
