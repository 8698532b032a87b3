"""The command `paceline simulate`: its options and its output."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from paceline._internal.console import say, width
from paceline.cli import param_types as types
from paceline.errors import naming
from paceline.forecast.options import Sweep, prepare
from paceline.forecast.simulate import Result, Scenario
from paceline.forecast.sweep import LOCAL
from paceline.settings.table import of_place

if TYPE_CHECKING:
    from paceline.forecast.explain import Explanation

_PATH = click.Path(path_type=Path)
_SETTINGS = [setting for setting in of_place("simulate") if setting.section]
# The sections of --help, in order, and their options.
_SECTIONS = {
    **{section: [] for section in dict.fromkeys(setting.section for setting in _SETTINGS)},
    "Output": ["explain", "as_json", "detail", "csv", "timeline", "plot"],
}
for _setting in _SETTINGS:
    _SECTIONS[_setting.section].append(_setting.name)


class _Sectioned(click.Command):
    """A command whose options are listed in sections."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the sections."""
        options = [param for param in self.get_params(ctx) if isinstance(param, click.Option)]
        records = {option.name: record for option in options if (record := option.get_help_record(ctx))}
        for title, names in _SECTIONS.items():
            with formatter.section(title):
                formatter.write_dl([records.pop(name) for name in names])
        with formatter.section("Other"):
            formatter.write_dl(list(records.values()))


@click.command(cls=_Sectioned)
@click.argument("trace", default="resnet-50")
@types.options("simulate", *(setting.name for setting in _SETTINGS), checked=False)
@click.option("--explain", is_flag=True, help="Explain what limits scaling, and which change would help most.")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON list with one object per scenario.")
@click.option("--detail", is_flag=True, default=None, help="With --json: add the busy time of every worker and link.")
@click.option("--csv", is_flag=True, help="Print CSV with units in the headers.")
@click.option("--timeline", type=_PATH, metavar="FILE", help="Write a Chrome trace of one scenario, for Perfetto.")
@click.option("--plot", type=_PATH, metavar="FILE", help="Write a plot: .png, .svg, .pdf or .html.")
def simulate(
    *,
    trace: str,
    explain: bool,
    as_json: bool,
    csv: bool,
    timeline: Path | None,
    plot: Path | None,
    **options: Any,  # noqa: ANN401
) -> None:
    """Forecast training of TRACE: a file, a name from `paceline traces`, or allreduce:SIZE[/COUNT].

    --workers, --bandwidth, --strategy, --servers, --compute-speedup and --coordinator take comma-separated lists; every
    combination is forecast. Rates are in bits per second (25Gbps), sizes in bytes (25MB, 64KiB).

    \b
    paceline simulate resnet-50 --workers 8,16,32 --bandwidth 10Gbps,25Gbps --strategy ring,ps
    paceline simulate mine.json --cluster p3.16xlarge --bucket-size 25MB
    """
    if options["detail"] and not as_json:
        raise click.UsageError("--detail has no effect without --json")
    if as_json and csv:
        raise click.UsageError("--json and --csv cannot be combined")
    if explain and csv:
        raise click.UsageError("--explain and --csv cannot be combined")
    sweep = Sweep.of(trace, options, "simulate", "flag", timeline=timeline, plot=plot)
    if sweep.get("coordinator") not in (None, ["none"]):
        if explain:
            raise click.UsageError("--explain has no effect with --coordinator; leave one of them out")
        _coordinated(sweep, as_json=as_json, csv=csv)
        return
    prepared = prepare(sweep)
    for note in prepared.notes:
        click.echo(f"paceline: note: {note}", err=True)
    with naming(sweep.sources):
        results = _execute(prepared.scenarios, timeline, sweep.get("executor") or LOCAL)
    if plot is not None:
        from paceline.forecast.plotting import plot as draw

        draw(results, plot)
    explanation = _explained(prepared.scenarios, results) if explain else None
    if as_json:
        say([json.dumps(_as_data(results, explanation), indent=1, allow_nan=False)])
    elif csv:
        from paceline.forecast.frame import to_csv

        click.echo(to_csv(results), nl=False)
    else:
        _print(prepared.scenarios, results, explanation)
        say([f"wrote {path}" for path in (timeline, plot) if path is not None])


def _coordinated(sweep: Sweep, *, as_json: bool, csv: bool) -> None:
    from paceline._internal.console import Bar, wrapped
    from paceline.forecast.coordination import options, table
    from paceline.forecast.coordination.model import execute

    prepared = options.prepare(sweep)
    for note in prepared.notes:
        click.echo(f"paceline: note: {note}", err=True)
    with Bar("simulating") as bar, naming(sweep.sources):
        results = execute(prepared.runs, bar, sweep.get("executor") or LOCAL)
    if as_json:
        say([json.dumps([result.to_dict() for result in results], indent=1, allow_nan=False)])
    elif csv:
        click.echo(table.to_csv(results), nl=False)
    else:
        lines = [line for sentence in table.advice(results) for line in wrapped(sentence, width())]
        say([*table.table(prepared.runs, results), "", *lines])


def _explained(scenarios: list[Scenario], results: list[Result]) -> Explanation:
    from paceline.forecast import table
    from paceline.forecast.explain import explain

    return explain(table.grouped(scenarios, results))


def _as_data(results: list[Result], explanation: Explanation | None) -> list[dict[str, Any]]:
    """Return an object for each scenario; the explained one holds the explanation."""
    objects = [result.to_dict() for result in results]
    if explanation is not None:
        objects[results.index(explanation.result)]["explanation"] = explanation.to_dict()
    return objects


def _execute(scenarios: list[Scenario], timeline: Path | None, executor: str) -> list[Result]:
    from paceline._internal.console import Bar
    from paceline._internal.files import replaced
    from paceline.forecast.sweep import execute

    if timeline is not None:
        with replaced(timeline) as path:
            return execute([replace(scenarios[0], timeline=path)])
    with Bar("simulating") as bar:
        return execute(scenarios, bar, executor)


def _print(scenarios: list[Scenario], results: list[Result], explanation: Explanation | None) -> None:
    from paceline._internal.console import wrapped
    from paceline.forecast import table
    from paceline.forecast.advice import advise

    groups = table.grouped(scenarios, results)
    say(table.table(groups))
    if explanation is None:
        largest = max(groups, key=lambda group: group.results[0].workers)
        sentences = [*advise(groups), table.likely(table.with_evidence(largest))]
        lines = [line for sentence in sentences for line in wrapped(sentence, width())]
    else:
        lines = explanation.text(width())
    notes = [line for note in table.notes(results) for line in wrapped(f"note: {note}", width())]
    say(["", *lines, *notes])
