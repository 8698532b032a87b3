"""The shape of every answer: a headline, a block of facts with a label each, tables, notes, and what to type next."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from paceline._internal.console import width, wrapped
from paceline._internal.units import printable
from paceline.errors import TRY

LABEL = 11
"""Characters of a label; values begin in column 16."""
_INDENT = 2
_GAP = 2

Pair = tuple[str, str]
"""A figure and its explanation, such as `1.85x` and `2x faster compute`; pairs of a fact are aligned."""
Tone = Literal["", "bad", "limit"]
"""How a value is colored: what does not fit, and the bottleneck."""


@dataclass(frozen=True)
class Fact:
    """A label and its value: lines of text, or pairs.

    Example:
        >>> fact = Fact("Would help", ("1.85x", "2x faster compute"), ("1.01x", "2x network bandwidth"))
        >>> fact.sentence
        'Would help: 1.85x 2x faster compute, 1.01x 2x network bandwidth'
    """

    label: str
    values: tuple[str | Pair, ...]
    tone: Tone = ""

    def __init__(self, label: str, *values: str | Pair, tone: Tone = "") -> None:
        """`values`: in order."""
        object.__setattr__(self, "label", label)
        object.__setattr__(self, "values", values)
        object.__setattr__(self, "tone", tone)

    @property
    def sentence(self) -> str:
        """The fact in one line, for `--json`: `Would help: 1.85x 2x faster compute, 1.01x 2x network bandwidth`."""
        parts = [value if isinstance(value, str) else " ".join(value) for value in self.values]
        return f"{self.label}: {', '.join(parts)}"


def headline(text: str, tone: Tone = "", columns: int | None = None) -> list[str]:
    """Return the first lines of an answer, bold on a terminal; red where something does not fit."""
    import click

    lines = wrapped(text, columns or width(), "  ")
    color = {"bad": "red"}.get(tone)
    return [click.style(line, bold=True, fg=color) for line in lines]


def block(facts: Iterable[Fact], columns: int | None = None) -> list[str]:
    """Return facts as lines of at most this many columns; what is wrapped continues below its value.

    Args:
        facts: In the order of the block.
        columns: By default the terminal's, at most 80.
    """
    columns = columns or width()
    lines: list[str] = []
    start = _INDENT + LABEL + _GAP
    for fact in facts:
        pairs = [value for value in fact.values if not isinstance(value, str)]
        first = max((len(pair[0]) for pair in pairs), default=0)
        label = f"{'':{_INDENT}}{fact.label:<{LABEL}}{'':{_GAP}}"
        for value in fact.values:
            if isinstance(value, str):
                texts = _filled(value, columns, start)
            else:
                inner = start + first + _GAP
                texts = _filled(value[1], columns, inner) or [""]
                texts[0] = f"{printable(value[0]):<{first}}{'':{_GAP}}{texts[0]}".rstrip()
                texts[1:] = [f"{'':{first + _GAP}}{text}" for text in texts[1:]]
            for text in texts:
                lines.append(label + _toned(text, fact.tone))
                label = " " * start
    return lines


def _filled(text: str, columns: int, start: int) -> list[str]:
    return wrapped(text, max(12, columns - start))


def _toned(text: str, tone: Tone) -> str:
    import click

    colors = {"bad": "red", "limit": "yellow"}
    return click.style(text, fg=colors[tone]) if tone else text


def pairs(rows: Sequence[Pair], columns: int | None = None) -> list[str]:
    """Return names and their texts in two columns, without labels; what is wrapped continues below its text."""
    columns = columns or width()
    first = _INDENT + max(len(name) for name, _ in rows) + _GAP
    lines = []
    for name, text in rows:
        texts = _filled(text, columns, first) or [""]
        lines.append(f"{'':{_INDENT}}{name:<{first - _INDENT}}{texts[0]}".rstrip())
        lines += [f"{'':{first}}{more}" for more in texts[1:]]
    return lines


def notes(texts: Iterable[str], columns: int | None = None, title: str = "Notes") -> list[str]:
    """Return notes, each once, with their heading after an empty line; nothing if there are none.

    A note that begins with `[1]` keeps that instead of a bullet.
    """
    every = list(dict.fromkeys(texts))
    if not every:
        return []
    lines = ["", title]
    for text in every:
        mark, body = (text[:4], text[4:]) if text.startswith("[") and text[2:4] == "] " else ("- ", text)
        lines += wrapped(f"  {mark}{body}", columns or width(), " " * (2 + len(mark)))
    return lines


def suggestion(remedy: str, columns: int | None = None) -> list[str]:
    """Return `  try: ` and what to type; a long command is continued with backslashes, so that it can be pasted."""
    columns = columns or width()
    remedy = printable(remedy)
    if len(TRY) + len(remedy) <= columns:
        return [TRY + remedy]
    if remedy.startswith(("paceline ", "python ")):
        return _continued(remedy, columns)
    return wrapped(TRY + remedy, columns, " " * len(TRY))


def _continued(command: str, columns: int) -> list[str]:
    """Break a command before options."""
    lines, line = [], TRY.rstrip()
    for option in _options(command):
        if len(line) + 1 + len(option) + 2 > columns and line.strip() != "try:":
            lines.append(line + " \\")
            line = " " * (len(TRY) + 1)
        line = f"{line.rstrip()} {option}" if line.strip() else f"{line}{option}"
    return [*lines, line]


def _options(command: str) -> list[str]:
    """Return the words of a command, each option with its value."""
    parts: list[str] = []
    for word in shlex.split(command):
        quoted = shlex.quote(word)
        if parts and not word.startswith("-") and parts[-1].startswith("-") and " " not in parts[-1]:
            parts[-1] += f" {quoted}"
        else:
            parts.append(quoted)
    return parts


def sentences(facts: Sequence[Fact]) -> list[str]:
    """Return facts as `--json` has them: a string each."""
    return [fact.sentence for fact in facts]
