"""The entries of `commands/*.toml`: a file for each theme, in it a table for each form of output."""

import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).parent
FORMS = ("json", "text", "both", "python")
"""The tables of a theme. A command is run with --json, as it stands, or both; `python` is code that prints JSON."""
_EVERYDAY = 10


@dataclass(frozen=True)
class Entry:
    """A command line, or a piece of Python, in one form of output."""

    theme: str
    name: str
    words: str
    form: str
    """`json`, `text` or `python`."""
    tier: str
    """`everyday`: in `make test`, too; `usual`; `slow`: seconds; `optional`: minutes, only if it is asked for."""

    @property
    def path(self) -> Path:
        """The golden file."""
        return FOLDER / self.theme / f"{self.name}.{'txt' if self.form == 'text' else 'json'}"

    @property
    def label(self) -> str:
        """What to call it, such as simulate/tiny.json."""
        return str(self.path.relative_to(FOLDER))

    @property
    def command(self) -> str:
        """What is run, to print."""
        if self.form == "python":
            return self.words.strip()
        return f"paceline {self.words}{' --json' if self.form == 'json' and '--json' not in self.words.split() else ''}"


def entries() -> list[Entry]:
    """Return all entries, in the order of the files."""
    return [entry for path in sorted((FOLDER / "commands").glob("*.toml")) for entry in _of(path)]


def _of(path: Path) -> Iterator[Entry]:
    theme = tomllib.loads(path.read_text(encoding="utf-8"))
    slow, optional = set(theme.pop("slow", ())), set(theme.pop("optional", ()))
    number = 0
    names = set[str]()
    for form, table in theme.items():
        if form not in FORMS:
            raise ValueError(f"{path}: unknown table {form}; forms are {', '.join(FORMS)}")
        for name, words in table.items():
            if name in names:
                raise ValueError(f"{path}: {name} is listed twice")
            names.add(name)
            tier = "optional" if name in optional else "slow" if name in slow else "usual"
            if tier == "usual":
                tier = "usual" if number % _EVERYDAY else "everyday"
                number += 1
            for one in ("json", "text") if form == "both" else (form,):
                yield Entry(path.stem, name, words, one, tier)
    if missing := (slow | optional) - names:
        raise ValueError(f"{path}: no entry is called {', '.join(sorted(missing))}")
