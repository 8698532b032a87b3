"""Tables of logs that were read."""

from __future__ import annotations

from collections.abc import Sequence

from paceline._internal.console import Column, render, width, wrapped
from paceline._internal.units import digits, duration, size
from paceline.interop.logs.contents import Read


def shown(read: Sequence[Read]) -> list[str]:
    """Return the tables: training first, then communication."""
    training = [one for one in read if one.total_images_per_s is not None]
    sending = [one for one in read if one.sizes]
    lines: list[str] = []
    if training:
        columns = [Column("log", left=True), Column("model", left=True), Column("by", left=True)]
        columns += [Column("devices"), Column("batch"), Column("images/s"), Column("jitter"), Column("a device")]
        lines += [*render(columns, [[_training(one) for one in training]]), ""]
    if sending:
        columns = [
            Column("log", left=True),
            Column("operation", left=True),
            Column("ranks"),
            Column("sizes", left=True),
        ]
        columns += [Column("smallest"), Column("largest"), Column("algorithm\nGB/s"), Column("bus\nGB/s")]
        lines += [*render(columns, [[_sending(one) for one in sending]]), ""]
    for one in read:
        where = one.source if one.alone else f"{one.source}:{one.line}"
        for note in one.notes:
            lines += wrapped(f"note: {where}: {note}", width(), "  ")
    return lines[:-1] if lines and not lines[-1] else lines


def _or(value: object) -> str:
    return "-" if value is None else str(value)


def _training(one: Read) -> list[str]:
    assert one.total_images_per_s is not None
    spread = "" if one.uncertainty is None else f" ± {digits(one.uncertainty, 2)}"
    each = digits(one.total_images_per_s / one.devices) if one.devices else "-"
    jitter = "-" if one.jitter is None else digits(one.jitter, 2)
    rate = f"{digits(one.total_images_per_s)}{spread}"
    return [one.name, one.what, _or(one.way), _or(one.devices), _or(one.batch), rate, jitter, each]


def _sending(one: Read) -> list[str]:
    first, last = one.sizes[0], one.sizes[-1]
    best, bus = (
        max((rate for rate in rates if rate is not None), default=None)
        for rates in (
            [each.algorithm_bandwidth for each in one.sizes],
            [each.bus_bandwidth for each in one.sizes],
        )
    )
    times = ["-" if each.seconds is None else duration(each.seconds) for each in (first, last)]
    rates = ["-" if rate is None else digits(rate / 1e9, 3) for rate in (best, bus)]
    sizes = f"{size(first.size_bytes)} – {size(last.size_bytes)}"
    return [one.name, one.what, _or(one.devices), sizes, *times, *rates]
