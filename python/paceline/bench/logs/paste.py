"""Lines as people paste them: coloured, quoted, indented, behind the prefix of a launcher or of a logger."""

from __future__ import annotations

import re

_ESCAPE = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b[@-_]")
"""Control sequences of terminals (ECMA-48, 5.4 and 8.3.89), such as colours and titles."""
_LONGEST = 4096
"""Number of characters of a line that are parsed; no result is longer."""
_RUN = re.compile(r"\d+|[^\W\d_]+|\s+")
_RANK = re.compile(r"[\[@]\d+,(\d+)\]?<std(?:out|err)>|^\s*(\d+):\s|\[(?:rank|default|worker|proc)?\s?(\d+)\]:?\s")
"""The rank in the prefixes of Open MPI (`[1,0]<stdout>:`), of `srun -l` and MPICH (`0: `, `[0] `), of torchrun."""


def cleaned(text: str) -> list[str]:
    """Return the lines without colours; the bars of tables become spaces."""
    return [_ESCAPE.sub("", line[:_LONGEST]).replace("|", " ").rstrip() for line in text.splitlines()]


def shape(prefix: str) -> str:
    """Return what prefixes of one launcher have in common: `[1,0]<stdout>:` and a time of day keep their marks."""
    return _RUN.sub(lambda run: "0" if run[0][0].isdigit() else " " if run[0].isspace() else "a", prefix.strip())


def rank(line: str) -> int | None:
    """Return the rank that the launcher's prefix names."""
    match = _RANK.search(line)
    return None if match is None else int(next(digits for digits in match.groups() if digits is not None)[:9])
