"""Lines as people paste them: colored, quoted, indented, behind the prefix of a launcher or of a logger."""

from __future__ import annotations

import codecs
import re

_ESCAPE = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b[@-_]")
"""Control sequences of terminals (ECMA-48, 5.4 and 8.3.89), such as colors and titles."""
_LONGEST = 4096
"""Number of characters of a line that are parsed; no result is longer."""
_THOUSANDS = re.compile(r"(?<!\S)\d{1,3}(?:,\d{3})+(?=[.\s]|$)")
"""A number of several groups of digits, as spreadsheets and reports write it; alone, so no part of a prefix."""
_RUN = re.compile(r"\d+|[^\W\d_]+|\s+")
_RANK = re.compile(r"[\[@]\d+,(\d+)\]?<std(?:out|err)>|^\s*(\d+):\s|\[(?:rank|default|worker|proc)?\s?(\d+)\]:?\s")
"""The rank in the prefixes of Open MPI (`[1,0]<stdout>:`), of `srun -l` and MPICH (`0: `, `[0] `), of torchrun."""


def decoded(content: bytes) -> str:
    """Return the text: UTF-16 is what PowerShell's `>` writes; single bytes may be of any encoding, as in names."""
    is_wide = content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    return content.decode("utf-16" if is_wide else "utf-8-sig", errors="replace")


def cleaned(text: str) -> list[str]:
    """Return the lines without colors; the bars of tables become spaces, and commas between digits nothing."""
    lines = (_ESCAPE.sub("", line[:_LONGEST]).replace("|", " ").rstrip() for line in text.splitlines())
    return [_THOUSANDS.sub(lambda number: number[0].replace(",", ""), line) for line in lines]


def shape(prefix: str) -> str:
    """Return what prefixes of one launcher have in common: `[1,0]<stdout>:` and a time of day keep their marks."""
    return _RUN.sub(lambda run: "0" if run[0][0].isdigit() else " " if run[0].isspace() else "a", prefix.strip())


def rank(line: str) -> int | None:
    """Return the rank that the launcher's prefix names."""
    match = _RANK.search(line)
    return None if match is None else int(next(digits for digits in match.groups() if digits is not None)[:9])
