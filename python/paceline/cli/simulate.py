"""The command `paceline simulate`: its options and its output."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from paceline._internal.console import put, remark, say
from paceline._internal.files import check_distinct
from paceline.catalog.builtin_names import COLLECTIVES
from paceline.cli import param_types as types
from paceline.cli.command import Command
from paceline.cli.completion import complete
from paceline.cli.usage import UsageError
from paceline.errors import InvalidArgumentError, naming
from paceline.forecast.anchor import anchored
from paceline.forecast.baseline import Baseline
from paceline.forecast.execute import LOCAL
from paceline.forecast.prepare import Prepared
from paceline.forecast.progress import SweepInterrupted
from paceline.forecast.request import Sweep
from paceline.forecast.result import Result
from paceline.forecast.scenario import Scenario
from paceline.settings.table import of_place

if TYPE_CHECKING:
    from paceline.forecast.longest import Longest
    from paceline.forecast.remedies import Trial
    from paceline.forecast.verdict.explain import Explanation
    from paceline.forecast.verdict.groups import Group
    from paceline.forecast.verdict.remedy import Proposed

_PATH = click.Path(path_type=Path)
_GIVEN = click.core.ParameterSource.COMMANDLINE
_BASIC = (
    *("workers", "gpu", "batch", "seq", "sharding", "strategy", "cluster", "bandwidth"),
    *("explain", "everything", "as_json", "plot"),
)
FIVE = 5
"""Rows of a configuration, unless all are asked for."""
_SECTIONS = {
    **types.sections(
        "simulate",
        _BASIC,
        {"Trace or model": ("configs",), "Simulation": ("jobs",)},
        {"Model details": "need --gpu", "Parallelism": "models only; --gpus counts all GPUs"},
    ),
    "Output details": ("csv", "detail", "timeline", "plan_json"),
}


@click.command(cls=Command, sections=_SECTIONS)
@click.argument("traces", metavar="[WORKLOAD]...", nargs=-1, shell_complete=complete)
@types.options(
    "simulate", *(setting.name for setting in of_place("simulate") if setting.name != "detail"), checked=False
)
@click.option("--jobs", type=_PATH, metavar="FILE", help="Several jobs on one network (TOML), without WORKLOAD.")
@click.option(
    "--config",
    "configs",
    type=_PATH,
    multiple=True,
    metavar="FILE",
    help="Model from a Hugging Face config.json; needs --gpu.",
)
@click.option("--all", "everything", is_flag=True, help="List all strategies, not only the five fastest that differ.")
@click.option("--explain", is_flag=True, help="Show the bottleneck and what would help.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, one object per scenario.")
@types.option("simulate", "detail")
@click.option("--csv", is_flag=True, help="Print CSV, with units in the headers.")
@click.option("--plan-json", type=_PATH, metavar="FILE", help="Write the plan of one scenario as JSON.")
@click.option("--timeline", type=_PATH, metavar="FILE", help="Write a Chrome trace of one scenario (Perfetto).")
@click.option("--plot", type=_PATH, metavar="FILE", help="Write a plot: .png, .svg, .pdf or .html.")
def simulate(
    *,
    traces: tuple[str, ...],
    jobs: Path | None,
    configs: tuple[Path, ...],
    everything: bool,
    explain: bool,
    as_json: bool,
    csv: bool,
    plan_json: Path | None,
    timeline: Path | None,
    plot: Path | None,
    **options: Any,  # noqa: ANN401
) -> None:
    """Forecast throughput, scaling and memory of training.

    \b
    WORKLOAD is one of (default: resnet-50):
      resnet-50           a built-in trace         (list: paceline list traces)
      llama-3-8b          a built-in model; --gpu  (list: paceline list models)
      mine.json           your own trace           (make: paceline record)
      ds_config.json      a trainer's file; --gpu  (docs/how-to/trainers-files.md)
      llama-3-8b@h100     a built-in model on its GPU
      allreduce:1GB       one collective; also allgather, reducescatter,
                          broadcast, reduce; ranges: allreduce:8B-16GB;
                          on a cluster with GPUs, it is NCCL's

    Options marked * take lists: --gpus 8,64. Every combination is forecast. Rates are in bits/s (25Gbps), sizes in
    bytes (25MB, 64KiB). Ctrl-C prints what is forecast so far.

    \b
    paceline simulate llama-3-8b --gpu h100 --gpus 64 --sharding zero3
    paceline simulate mine.json --gpus 8,64 --bandwidth 25Gbps --explain
    paceline simulate resnet-50 --gpus 64 --bandwidth 10Gbps,100Gbps
    paceline simulate allreduce:8B-16GB --cluster dgx-b200 --gpus 8
    """
    if jobs is not None:
        if not _of_jobs(jobs, as_json=as_json, timeline=timeline, plot=plot):
            click.echo("paceline: interrupted; what is known is printed, marked as stopped", err=True)
            raise click.Abort
        return
    outputs = {
        "--explain": explain,
        "--detail": options["detail"],
        "--all": everything,
        "--timeline": timeline is not None,
        "--plan-json": plan_json is not None,
    }
    if _of_collectives(_named(traces), options, outputs, as_json=as_json, csv=csv, plot=plot):
        return
    if options["detail"] and not as_json:
        raise UsageError("--detail needs --json", remedy="--json")
    if as_json and csv:
        raise UsageError("--json and --csv cannot be combined", remedy="drop --csv, or drop --json")
    if explain and csv:
        raise UsageError("--explain and --csv cannot be combined", remedy="drop --csv, or drop --explain")
    if everything and (as_json or csv):
        raise UsageError(
            f"--all has no effect with {'--json' if as_json else '--csv'}, which has all", remedy="drop --all"
        )
    named = _named(traces, configs)
    requested = options
    options, longest = _with_longest(named, options)
    sweep = Sweep.of(named, options, "simulate", "flag", timeline=timeline, plot=plot)
    baseline = None if sweep.get("baseline") is None else _baseline(sweep)
    request = anchored(sweep if baseline is None else baseline.requested(sweep))
    prepared = request.prepared
    if plot is not None:
        from paceline.forecast.output.plotting import check_plot

        check_plot(plot)
    if as_json or csv:
        for note in [*prepared.notes, *([sweep.file.left_out] if sweep.file is not None else [])]:
            if note:
                remark(note)
    elif sweep.file is not None:
        for slip in sweep.file.slips:
            remark(slip)
    if plan_json is not None:
        check_distinct([("--plan-json", plan_json), ("--plot", plot), ("--timeline", timeline)], sweep.inputs)
        _write_plan(prepared.scenarios, plan_json)
    most = None if everything or sweep.get("strategy") is not None else FIVE
    try:
        with naming(sweep.sources):
            results = request.results(_execute(prepared.scenarios, timeline, sweep.get("executor") or LOCAL))
            if baseline is not None:
                results = baseline.compared(prepared.scenarios, results)
    except SweepInterrupted as interrupted:
        _print_unfinished(prepared, interrupted, most, as_json=as_json, csv=csv)
        raise click.Abort from None
    if plot is not None:
        from paceline.forecast.output.plotting import write

        write(results, plot, prepared.noun)
    explanation = _explained(prepared, results) if explain else None
    file = sweep.described_file()
    from paceline.forecast.remedies import Proposals
    from paceline.forecast.typed import Typed
    from paceline.forecast.verdict import remedy

    longer: tuple[Trial, ...] = ()
    whole = Typed.of("simulate", named[0], requested, "flag")
    if longest is not None:
        from paceline.forecast.longest import longer as lengthened

        longer = lengthened(whole, longest.context) if longest.is_short else ()
        longer = tuple(trial for trial in longer if trial.seq > longest.tokens)
        results = [replace(result, longest_seq=longest.tokens) for result in results]

    def proposed(group: Group, result: Result) -> Proposed | None:
        if longer:
            return remedy.Proposed(whole, Proposals(longer))
        scenario = group.scenario(result)
        return remedy.proposed(Typed.of("simulate", named[scenario.base], options, "flag"), sweep, scenario, result)

    if as_json:
        made = _as_data(results, explanation, prepared.notes)
        _add_proposals(made, prepared, results, proposed)
        if file is not None:
            made = [one | {"file": file.to_dict()} for one in made]
        put(json.dumps(made, indent=1, allow_nan=False))
    elif csv:
        from paceline.forecast.output.frame import to_csv

        click.echo(to_csv(results), nl=False)
    else:
        if longest is not None:
            from paceline.forecast.wording import remedies

            say([longest.words, "", *([*remedies.longer(whole, longer), ""] if longer else [])])
        _print(prepared, results, explanation, most, (lambda *_: None) if longer else proposed)
        if file is not None:
            from paceline.forecast.wording import trainer_file

            say(["", *trainer_file.lines(file)])
        say([f"wrote {path}" for path in (plan_json, timeline, plot) if path is not None])


def _with_longest(named: list[str], options: dict[str, Any]) -> tuple[dict[str, Any], Longest | None]:
    """Return the options with the longest sequence that fits, where it is asked for. Raises InvalidArgumentError."""
    from paceline.forecast.longest import asks, longest
    from paceline.forecast.typed import Typed

    if not asks(options):
        return options, None
    if len(named) > 1:
        raise UsageError("--seq max is of one model", remedy="one model, or --seq 4096")
    with naming(types.flags("simulate", options)):
        typed = Typed.of("simulate", named[0], options, "flag")
        most = longest(lambda tokens: typed.changed({"seq": tokens}).request())
    return {**options, "seq": str(most.tried)}, most


def _baseline(sweep: Sweep) -> Baseline:
    """Return the baseline that was asked for. Raises InvalidArgumentError, which names the option."""
    try:
        return Baseline.of(sweep.get("baseline"))
    except InvalidArgumentError as error:
        raise error.at("baseline", sweep.sources["baseline"]) from None


def _named(words: tuple[str, ...], configs: tuple[Path, ...] = ()) -> list[str]:
    """Return the traces and models; like other lists they may be separated by commas.

    A word is not cut if there is a file or folder of that name, or if it has a model's options.
    """
    from paceline.catalog.models.config import read_config

    whole = [Path(word).exists() or "@" in word for word in words]
    names = [
        name.strip()
        for word, is_one in zip(words, whole, strict=True)
        for name in ([word] if is_one else word.split(","))
    ]
    for word in words:
        _refuse_list_of_sizes(word)
    for path in configs:
        with types.naming_option("--config"):
            read_config(path)
    return [*names, *map(str, configs)] or ["resnet-50"]


def _refuse_list_of_sizes(word: str) -> None:
    """Raise InvalidArgumentError for a collective with a list of sizes: the second would be taken for a trace."""
    from paceline import _core

    first, *others = (part.strip() for part in word.split(","))
    kind, colon, size = first.partition(":")
    if not (colon and kind in COLLECTIVES):
        return
    for other in others:
        try:
            _core.parse_size(other)
        except ValueError:
            continue
        raise InvalidArgumentError(
            f"{word:.80}: a collective has one size or a range", remedy=f"{kind}:{size:.20}-{other:.20}"
        )


def _write_plan(scenarios: list[Scenario], path: Path) -> None:
    """Write the plan of the only scenario."""
    from paceline._internal.files import check_writable, replaced
    from paceline.forecast.lowering import native

    check_writable("--plan-json", path)
    if len(scenarios) != 1:
        raise InvalidArgumentError(
            f"--plan-json writes one plan, and {len(scenarios)} scenarios are requested",
            remedy="--gpus 8 --strategy native --sharding zero3 (one of each)",
        )
    text = native(scenarios[0]).plan().to_json()
    with replaced(path) as written:
        written.write_text(text, encoding="utf-8")


def _of_collectives(
    words: list[str],
    options: dict[str, Any],
    outputs: dict[str, bool | None],
    *,
    as_json: bool,
    csv: bool,
    plot: Path | None,
) -> bool:
    """Forecast NCCL's collectives, if they are asked for; return whether they are."""
    if not any(word.startswith(COLLECTIVES) for word in words):
        return False
    from paceline.forecast.nccl import request

    if not request.is_asked(words, {**options, "outputs": any(outputs.values()) or None}):
        return False
    from paceline.forecast.nccl import table

    for name, given in outputs.items():
        if given:
            raise UsageError(
                f"{name} needs a strategy, and {words[0]} is NCCL's", remedy=f"--strategy ring, or drop {name}"
            )
    if as_json and csv:
        raise UsageError("--json and --csv cannot be combined", remedy="drop --csv, or drop --json")
    if plot is not None:
        table.check_plot(plot)
    answers = request.answers(words, options)
    if plot is not None:
        table.draw(answers, plot)
    if as_json:
        put(json.dumps([row for it in answers for row in table.to_dicts(it)], indent=1, allow_nan=False))
    elif csv:
        click.echo(table.to_csv(answers), nl=False)
    else:
        say([*table.lines(answers), *([f"wrote {plot}"] if plot is not None else [])])
    return True


def _of_jobs(path: Path, *, as_json: bool, timeline: Path | None, plot: Path | None) -> bool:
    """Forecast several jobs on one network, whose options are in the file; return whether Ctrl-C did not end it.

    Options of the cluster win over the file's.
    """
    from paceline._internal.console import Bar
    from paceline._internal.files import check_writable, replaced
    from paceline.forecast.jobs import plot as plotting
    from paceline.forecast.jobs import spec, table
    from paceline.forecast.jobs.model import simulate_jobs

    ctx, given = click.get_current_context(), {}
    for param in ctx.command.params:
        name = param.name or ""
        if name in ("jobs", "as_json", "timeline", "plot") or ctx.get_parameter_source(name) != _GIVEN:
            continue
        if name in spec.OF_THE_CLUSTER:
            given[name] = ctx.params[name]
            continue
        is_trace = isinstance(param, click.Argument)
        word = "WORKLOAD" if is_trace else param.opts[0]
        typed = " ".join(map(str, ctx.params[name])) if is_trace else word
        in_file = f" (it goes into {path})" if is_trace or name in spec.SETTINGS_OF_FILES else ""
        raise UsageError(f"{word} has no effect with --jobs", remedy=f"drop {typed:.200}{in_file}")
    if plot is not None:
        plotting.check(plot)
    if timeline is not None:
        check_writable("--timeline", timeline)
    mix = spec.read(path, given)
    if as_json:
        for note in mix.notes:
            remark(note)
    with Bar("simulating") as bar:
        if timeline is None:
            result = simulate_jobs(mix, bar=bar)
        else:
            with replaced(timeline) as written:
                result = simulate_jobs(mix, timeline=written, bar=bar)
    if plot is not None:
        plotting.draw(result, plot)
    if as_json:
        put(json.dumps(table.to_dict(result), indent=1, allow_nan=False))
        return not result.is_partial
    say([*table.lines(result), *[f"wrote {file}" for file in (timeline, plot) if file is not None]])
    return not result.is_partial


def _explained(prepared: Prepared, results: list[Result]) -> Explanation:
    from paceline._internal.console import Bar
    from paceline.forecast.verdict.explain import explain
    from paceline.forecast.verdict.groups import grouped

    groups = grouped(prepared.scenarios, results, requested_extras=prepared.requested_extras, noun=prepared.noun)
    with Bar("explaining"):
        return explain(groups)


def _as_data(results: list[Result], explanation: Explanation | None, notes: Sequence[str]) -> list[dict[str, Any]]:
    """Return an object for each scenario, with the notes on all of them; the explained one holds the explanation."""
    objects = [result.to_dict() for result in results]
    for one in objects:
        one["notes"] += notes
    if explanation is not None:
        from paceline.forecast.wording import explanation as words

        objects[results.index(explanation.result)]["explanation"] = words.to_dict(explanation)
    return objects


def _add_proposals(
    objects: list[dict[str, Any]],
    prepared: Prepared,
    results: list[Result],
    proposed: Callable[[Group, Result], Proposed | None],
) -> None:
    """Add what makes it fit to the objects of which the text would say that they do not."""
    from paceline.forecast.verdict.groups import grouped, largest
    from paceline.forecast.wording import remedies

    for group in largest(grouped(prepared.scenarios, results, requested_extras=prepared.requested_extras)):
        about = group.headline_result()
        if (fix := proposed(group, about)) is not None:
            place = next(place for place, result in enumerate(results) if result is about)
            objects[place]["fits_with"] = remedies.to_list(fix)


def _execute(scenarios: list[Scenario], timeline: Path | None, executor: str) -> list[Result]:
    from paceline._internal.console import Bar
    from paceline._internal.files import replaced
    from paceline.forecast.execute import execute

    with Bar("simulating") as bar:
        if timeline is None:
            return execute(scenarios, bar, executor)
        with replaced(timeline) as path:
            return execute([replace(scenarios[0], timeline=path)])


def _print(
    prepared: Prepared,
    results: list[Result],
    explanation: Explanation | None,
    most: int | None,
    proposed: Callable[[Group, Result], Proposed | None],
) -> None:
    """Print the answer, the table and the notes; `proposed` tries what makes a result fit."""
    from paceline._internal import block
    from paceline._internal.console import Bar
    from paceline.forecast.output.table import listed, table
    from paceline.forecast.verdict.advice import advise
    from paceline.forecast.verdict.groups import grouped
    from paceline.forecast.wording import explanation as explanations
    from paceline.forecast.wording import rows, verdict

    groups = grouped(prepared.scenarios, results, requested_extras=prepared.requested_extras, noun=prepared.noun)
    cells = table(groups, most)
    said = [note for note in prepared.notes if most is None or note not in prepared.unsupported]
    notes = [*said, *rows.notes([result for group in groups for result in listed(group, most)])]
    if explanation is None:
        try:
            with Bar("comparing"):
                verdicts = [(one, proposed(one.group, one.result)) for one in advise(groups)]
        except KeyboardInterrupt:
            say([*cells, *block.notes(notes)])
            click.echo("paceline: interrupted; the table is complete, its comparison is left out", err=True)
            raise click.Abort from None
        answers = [verdict.answer(one, groups, has_table=bool(cells), proposed=fix) for one, fix in verdicts]
        lines = [line for one in answers for line in [*one.lines(), ""]][:-1]
        if all(one.fits and one.facts for one in answers):
            lines += block.suggestion("--explain (how far it scales, what else would help)")
        notes = [*(note for one in answers for note in one.notes), *notes]
    else:
        with Bar("comparing"):
            fix = proposed(explanation.group, explanation.result)
        lines = explanations.lines(explanation, fix)
        notes = [*explanations.answer(explanation).notes, *notes]
    say([*lines, *([""] if lines and cells else []), *cells, *block.notes(notes)])


def _print_unfinished(
    prepared: Prepared, interrupted: SweepInterrupted, most: int | None, *, as_json: bool, csv: bool
) -> None:
    """Print what was forecast before Ctrl-C, marked as incomplete."""
    from paceline.forecast.output.frame import to_csv
    from paceline.forecast.output.table import table
    from paceline.forecast.verdict.groups import grouped
    from paceline.forecast.wording import verdict

    results = list(interrupted.results.values())
    done = {"finished": len(results), "scenarios": interrupted.scenarios}
    if as_json:
        objects = [one | {"incomplete": done} for one in _as_data(results, None, prepared.notes)]
        put(json.dumps(objects, indent=1, allow_nan=False))
    elif csv and results:
        click.echo(to_csv(results, {"incomplete": f"{done['finished']} of {done['scenarios']}"}), nl=False)
    elif results:
        scenarios = [prepared.scenarios[place] for place in interrupted.results]
        groups = grouped(scenarios, results, requested_extras=prepared.requested_extras, noun=prepared.noun)
        # A single row has no table.
        cells = table(groups, most) or [verdict.headline(groups[0], results[0], groups)]
        say([f"incomplete: {interrupted}", "", *cells])
    click.echo(f"paceline: {interrupted}", err=True)
