"""Causes of lost time by name: their titles, what to check and to try, from causes.json.

`paceline doctor` finds causes in a timeline, `paceline compare` in a gap between forecast and measurement; both have
their words from here.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path

from paceline.catalog.constants import read_document

_FILE = Path(__file__).parent / "causes.json"
_UNSEEN = 0.5
"""Issues that a cause without any counts as: Jeffreys' prior for a proportion."""
_FIELDS = {"try": "remedy"}
"""Names of the file's fields, where they are words of Python."""
PARTS = ("computation", "communication", "input", "optimizer", "launches", "stragglers")
"""Parts of a step, in the order of tables."""


@dataclass(frozen=True)
class Issue:
    """A public issue in which a cause was stated. `runs`: `several nodes`, `one node`, `images`, `text` or `any`."""

    url: str
    runs: str


@dataclass(frozen=True)
class Cause:
    """A cause of lost time."""

    name: str
    title: str
    part: str
    """The part of a step that it lengthens."""
    check: str
    """A counter, a line of a log or a command that tells it from others."""
    remedy: str
    issues: tuple[Issue, ...]
    amd: Mapping[str, str] = field(default_factory=dict)
    """Fields that have other words on AMD's GPUs. RCCL reads the variables of NCCL, and logs as NCCL does."""

    @property
    def on_amd(self) -> Cause:
        """The same cause in the words of AMD's tools and libraries."""
        return replace(self, **self.amd)  # type: ignore[arg-type]

    def weight(self, runs: Collection[str], without: str = "") -> float:
        """Return how often it was stated in issues about runs of these kinds, with half an issue for the unseen.

        `without`: the address of an issue that does not count.
        """
        return _UNSEEN + sum(
            issue.runs in ("any", *runs) for issue in self.issues if not without or issue.url != without
        )


@lru_cache(maxsize=1)
def all_causes() -> dict[str, Cause]:
    """Return the causes by name."""
    document = read_document(_FILE, "causes")
    causes = [
        Cause(
            one["name"],
            one["title"],
            one["part"],
            one["check"],
            one["try"],
            tuple(Issue(**issue) for issue in one["issues"]),
            {_FIELDS.get(name, name): words for name, words in one.get("amd", {}).items()},
        )
        for one in document["causes"]
    ]
    return {cause.name: cause for cause in causes}


def title_of(name: str) -> str:
    """Return the title of a cause of the catalog."""
    return all_causes()[name].title
