"""The fields of a trainer's file, and what became of each, as people read it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from paceline._internal.block import Fact, block
from paceline._internal.console import Column, render
from paceline.forecast.trainer_file import TrainerFile

if TYPE_CHECKING:
    from paceline.interop.trainers.reading import Row


def lines(file: TrainerFile) -> list[str]:
    """Return the table of the fields that were read, and below it what became of the others."""
    columns = [
        Column(f"Read from {file.path.name}", left=True),
        Column("value", left=True),
        Column("option", left=True),
    ]
    cells = [[row.field, row.value, row.words] for row in read(file)]
    return [headline(file), "", *render(columns, [cells]), "", *block(others(file))]


def headline(file: TrainerFile) -> str:
    """Return whose file it is."""
    return f"{file.path.name} is a file of {file.trainer}"


def read(file: TrainerFile) -> list[Row]:
    """Return the fields that options were taken from."""
    return [row for row in file.rows if row.fate == "read" and row.options]


def others(file: TrainerFile) -> list[Fact]:
    """Return what became of the other fields, and what is assumed where the file says nothing."""
    return list(_others(file))


def _others(file: TrainerFile) -> Iterator[Fact]:
    if file.assumptions:
        yield Fact("Assumed", *(f"{one.words}{f' ({one.remedy})' if one.remedy else ''}" for one in file.assumptions))
    same = [row for row in file.rows if row.fate == "read" and not row.options]
    if same:
        yield Fact("As it is", *_by_reason(same))
    idle = [row for row in file.rows if row.fate == "no effect"]
    if idle:
        yield Fact("No effect", *_by_reason(idle))
    for fate, label in (("not forecast", "Not modeled"), ("not understood", "Unknown")):
        rows = [row for row in file.rows if row.fate == fate]
        if rows:
            yield Fact(label, *(f"{row.field}: {row.value}{f' ({row.words})' if row.words else ''}" for row in rows))


def _by_reason(rows: list[Row]) -> Iterator[str]:
    reasons: dict[str, list[str]] = {}
    for row in rows:
        reasons.setdefault(row.words, []).append(row.field)
    for reason, names in reasons.items():
        yield f"{', '.join(names)} ({reason})"
