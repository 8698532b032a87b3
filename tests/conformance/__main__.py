"""Runs the peers' tests with Paceline and compares with what is known: `python -m conformance [SUITE…]`.

Exit code 1 if a test fails that known.toml does not list.
"""

from __future__ import annotations

import json
import sys
import time
import tomllib
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

from conformance.suites import SUITES, Record, Suite, SuiteError, run

KNOWN = Path(__file__).with_name("known.toml")


def judged(record: Record, known: dict[str, str]) -> str:
    """Return passed, skipped, known, failed; or surprise: it is listed, and passes."""
    if record["outcome"] == "failed":
        return "known" if record["test"] in known else "failed"
    return "surprise" if record["outcome"] == "passed" and record["test"] in known else str(record["outcome"])


def last_line(message: str) -> str:
    """Return the last line of a message that says something."""
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    return lines[-1] if lines else ""


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("suites", nargs=-1, type=click.Choice([suite.name for suite in SUITES]))
@click.option("--only", multiple=True, help="Only tests of this name; may be repeated.")
@click.option("--backend", type=click.Choice(["paceline", "gloo"]), default="paceline", help="For torch's tests.")
@click.option("--json", "file", type=click.Path(path_type=Path), help="Write every record to this file.")
def main(suites: tuple[str, ...], only: tuple[str, ...], backend: str, file: Path | None) -> None:
    """Run the peers' tests: all SUITES by default, but `trainers`, which installs gigabytes."""
    console = Console(stderr=True, highlight=False)
    known = tomllib.loads(KNOWN.read_text())
    chosen = [suite for suite in SUITES if (suite.name in suites if suites else not suite.by_name)]
    table = Table("suite", "ranks", "passed", "known", "skipped", "failed", "seconds", box=None)
    records: dict[str, list[Record]] = {}
    failed = False
    for suite in chosen:
        if (why := suite.missing()) is not None:
            console.print(f"{suite.name}: skipped: {why}", soft_wrap=True)
            continue
        own = known.get(suite.tests, {}) | known.get(suite.name, {})
        names = list(only) or None
        if suite.after in records:
            skipped = [record["test"] for record in records[suite.after] if record["outcome"] == "skipped"]
            names = [name for name in skipped if not only or name in only]
        said = Teller(console, suite, own)
        since = time.monotonic()
        try:
            records[suite.name] = run(suite, backend, names, own, said)
        except SuiteError as error:
            console.print(str(error), soft_wrap=True, markup=False)
            failed = True
        counts = [str(said.count(*kinds)) for kinds in (("passed", "surprise"), ("known",), ("skipped",), ("failed",))]
        table.add_row(suite.name, str(suite.ranks), *counts, f"{time.monotonic() - since:.0f}")
        failed |= said.count("failed") > 0
    Console().print(table)
    for record in records.get("trainers", []):
        if record["test"] == "versions":
            print(record["message"])
    if file is not None:
        file.write_text(json.dumps(records, indent=1))
    sys.exit(failed)


class Teller:
    """Prints each test that does not go as expected, and counts all."""

    def __init__(self, console: Console, suite: Suite, known: dict[str, str]) -> None:
        """`known`: causes by test."""
        self.console, self.suite, self.known = console, suite, known
        self.actual: list[str] = []

    def count(self, *kinds: str) -> int:
        """Return how many tests have gone that way."""
        return sum(result in kinds for result in self.actual)

    def __call__(self, record: Record) -> None:
        """Take note of a test."""
        kind = judged(record, self.known)
        self.actual.append(kind)
        name = f"{self.suite.name}: {record['test']}"
        if kind == "failed":
            self.console.print(f"{name} fails: {last_line(record['message'])}", soft_wrap=True, markup=False)
        elif kind == "surprise":
            self.console.print(f"{name} passes now: take it out of {KNOWN.name}", soft_wrap=True, markup=False)
        elif self.console.is_terminal:
            self.console.print(f"{name}: {kind}", soft_wrap=True, markup=False)


if __name__ == "__main__":
    main()
