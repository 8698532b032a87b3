"""The layout of `--help`: options in sections, one column for their names, a `*` where an option takes a list."""

from __future__ import annotations

import inspect
import re
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import click

from paceline._internal.console import encodable, wrapped

Sections = Mapping[str, Sequence[str]]
"""Names of parameters by heading, both in the order of the page."""
_WIDTH, _NARROWEST = 80, 40
WIDEST_NAMES = 24
"""Columns for an option's names and placeholder; longer ones have a line of their own."""
_PLACEHOLDERS = {"choice": "NAME", "path": "FILE", "file": "FILE", "integer range": "N", "float range": "X"}
"""Of click's own types, by name."""


class Row(NamedTuple):
    """One option of a page."""

    names: str
    """`--gpus, --workers N,…`."""
    takes_list: bool
    text: str


class Alias(click.Option):
    """Another name of an option, which is listed beside the first."""

    def __init__(self, *args: Any, of: str, **others: Any) -> None:  # noqa: ANN401
        """`of`: the name of the parameter."""
        super().__init__(*args, **others)
        self.of = of


class Formatter(click.HelpFormatter):
    """Text and options on 80 columns, or on those of a narrower terminal."""

    def __init__(self, *_: object, **__: object) -> None:
        """As wide as the terminal, from 40 to 80 columns."""
        columns = shutil.get_terminal_size((_WIDTH, 24)).columns
        super().__init__(width=max(_NARROWEST, min(_WIDTH, columns)))

    def getvalue(self) -> str:
        """Return the page, as the terminal can print it."""
        return encodable(super().getvalue(), sys.stdout)

    def write_text(self, text: str) -> None:
        """Write paragraphs; lines of one that begins with click's mark stay as they are."""
        indent = " " * self.current_indent
        paragraphs = []
        for paragraph in text.split("\n\n"):
            if paragraph.startswith("\b"):
                lines = [f"{indent}{line}".rstrip() for line in paragraph.splitlines()[1:]]
            else:
                lines = [f"{indent}{line}" for line in wrapped(paragraph, self.width - self.current_indent)]
            paragraphs.append("\n".join(lines))
        self.write("\n\n".join(paragraphs) + "\n")

    def write_options(self, listed: Sequence[Row], names: int) -> None:
        """Write rows whose names take this many columns."""
        first = self.current_indent + names + 2
        for row in listed:
            lines = _lines(row.text, self.width - first - 2)
            head = f"{'':{self.current_indent}}{row.names}"
            if len(head) > first - 1:
                self.write(f"{head}\n")
                head = ""
            marked = [f"{head:{first}}{'* ' if row.takes_list else '  '}{lines[0]}"]
            self.write(
                "".join(f"{line.rstrip()}\n" for line in [*marked, *(f"{'':{first + 2}}{it}" for it in lines[1:])])
            )


def _lines(text: str, width: int) -> list[str]:
    """Return a help text as lines; its default, in brackets at the end, is not broken if a line can hold it."""
    about, bracket, default = text.partition("  [")
    lines = wrapped(about, width) or [""]
    if not bracket:
        return lines
    if len(lines[-1]) + 2 + len(default) + 1 <= width:
        return [*lines[:-1], f"{lines[-1]}  [{default}"]
    return [*lines, *wrapped(f"[{default}", width)]


def rows(params: Sequence[click.Parameter]) -> Iterator[tuple[click.Option, Row]]:
    """Return the options that are listed, each with its row."""
    options = [one for one in params if isinstance(one, click.Option) and not one.hidden]
    aliases: dict[str, list[str]] = {}
    for option in options:
        if isinstance(option, Alias):
            aliases.setdefault(option.of, []).extend(option.opts)
    for option in options:
        if not isinstance(option, Alias):
            yield option, _row(option, aliases.get(option.name or "", []))


def _row(option: click.Option, aliases: Sequence[str]) -> Row:
    names = ", ".join([*aliases, *sorted(option.opts, key=lambda name: name.startswith("--"))])
    if option.secondary_opts:
        names = f"--[no-]{option.opts[0].removeprefix('--')}"
    if not option.is_flag and not option.count and (of := placeholder(option)):
        names += f" {of}"
    text = option.help or ""
    if option.required:
        text += "  [required]"
    return Row(names, bool(getattr(option.type, "is_list", False)), text)


def placeholder(option: click.Parameter) -> str:
    """Return what stands for an option's value: `N`, `NAME,…`."""
    name = option.type.name
    return getattr(option, "metavar", None) or _PLACEHOLDERS.get(name, name if name.upper() == name else "TEXT")


def paragraphs(command: click.Command) -> list[str]:
    """Return the paragraphs of a command's help."""
    return inspect.cleandoc(command.help or "").split("\n\n")


def examples(command: click.Command) -> list[str]:
    """Return the command lines that its help shows, each in one line."""
    kept = [paragraph for paragraph in paragraphs(command) if paragraph.startswith("\b")]
    joined = [re.sub(r"\s*\\\n\s*", " ", paragraph) for paragraph in kept]
    return [line for paragraph in joined for line in paragraph.splitlines() if line.startswith("paceline ")]
