"""A rank that replays a trace: `paceline run -np 4 --strategy ring -- python -m paceline_lab.replay TRACE`."""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
from paceline._internal import block, units
from paceline._internal.block import Fact
from paceline._internal.console import put, say
from paceline._internal.extras import need
from paceline.catalog.builtin import load_trace
from paceline.catalog.compression import OPTIONS as COMPRESSION
from paceline.cli import param_types as types
from paceline.cli.command import Command
from paceline.errors import TRY, InvalidArgumentError, naming
from paceline.forecast.sharding import OPTIONS
from paceline.forecast.sharding import check as check_options
from paceline.job import job

from paceline_lab.replay import traces
from paceline_lab.replay.result import Played, measured

SHARDED = (*(name for name in OPTIONS if name != "optimizer"), *COMPRESSION)
"""Options of a plan that change what is exchanged."""


@click.command(cls=Command)
@click.argument("trace")
@types.options("replay", "scale", "shrink", "iterations", "warmup", filled=True)
@types.options("replay", "bucket_size", "pull", "barrier", "overlap")
@types.options("replay", "sharding", *SHARDED)
@click.option("--output", type=click.Path(path_type=Path), metavar="DIR", help="Write DIR/replay-rank-N.json.")
@click.option("--json", "as_json", is_flag=True, help="Rank 0 prints the results of all ranks as JSON.")
def main(
    *,
    trace: str,
    scale: float,
    shrink: float,
    iterations: int,
    warmup: int,
    output: Path | None,
    as_json: bool,
    **options: Any,  # noqa: ANN401
) -> None:
    """Replay TRACE as one rank of a job: sleep instead of computing, and exchange real gradients.

    Strategy, servers and so on are settings of the job, set by options of `paceline run`. --scale 4 makes all times
    four times as long; --shrink 4 sends a quarter of the bytes. Either one keeps the ratio of communication to
    computation on a network that is four times slower than the intended one.
    """
    need("replaying", "emulate", "numpy")
    from paceline_lab.replay.play import ReplaySpec, gather, play

    if output is not None and not output.is_dir():
        raise InvalidArgumentError(f"--output {output}: no such folder", remedy=f"mkdir -p {output.parent}")
    step = traces.shrunk(load_trace(trace), shrink)
    flags = types.flags("replay", options)
    sharded = {name: options.pop(name) for name in ("sharding", *SHARDED)}
    sharded = {name: value for name, value in sharded.items() if value is not None}
    with naming(flags):
        check_options([sharded["sharding"]] if "sharding" in sharded else None, sharded)
    with job.join_named() as ranks, naming(flags):
        if sharded:
            ranks.settings.refuse_asynchronous("a sharded replay")
        played = play(ranks, ReplaySpec(step, iterations, warmup, speedup=1 / scale, sharded=sharded, **options))
        if output is not None:
            (output / f"replay-rank-{ranks.rank}.json").write_text(json.dumps(played.to_dict()))
        everybody = gather(ranks, played)
    if everybody:
        if as_json:
            put(_json(everybody))
        else:
            say(_text(everybody, scale, shrink))


def _json(ranks: Sequence[Played]) -> str:
    values = {"iterations": [vars(one) for one in measured(ranks)], "ranks": [rank.to_dict() for rank in ranks]}
    return json.dumps(values, indent=1)


def _text(ranks: Sequence[Played], scale: float, shrink: float) -> list[str]:
    first, iterations = ranks[0], measured(ranks)
    times = sorted(one.seconds for one in iterations)
    workers = units.count(first.size, "worker")
    late = units.duration(max(one.late_s for one in iterations))
    facts = [
        Fact("Range", f"{units.durations(times[0], times[-1])} (median of {len(times)})"),
        Fact("Timers", f"woke up to {late} late (p99)"),
        Fact("Checked", units.count(first.sums_checked, "sum")),
    ]
    if scale * shrink != 1:
        slower = f"for a network {scale * shrink:g}x slower than the intended one"
        facts.append(Fact("Scaled", f"{slower}: {_ratio(scale, shrink)}"))
    notes = dict.fromkeys(note for rank in ranks for note in rank.notes)
    if error_s := max(rank.clock_error_s for rank in ranks):
        notes[f"Clocks of several machines were aligned to {units.duration(error_s)}"] = None
    strategy = first.strategy or "strategies chosen by size"
    headline = f"{first.trace}, {strategy}, {workers}: {units.duration(statistics.median(times))}/iteration"
    return [*block.headline(headline), "", *block.block(facts), *block.notes(notes)]


def _ratio(scale: float, shrink: float) -> str:
    words = [f"times x {scale:g}"] if scale != 1 else []
    words += [f"bytes / {shrink:g}"] if shrink != 1 else []
    return units.listed(words)


def run() -> int:
    """Run the command, with errors as one line each and their remedies; return the exit code."""
    try:
        main.main(standalone_mode=False)
    except click.ClickException as error:
        return _fail(error.format_message(), getattr(error, "remedy", None), error.exit_code)
    except InvalidArgumentError as error:
        return _fail(str(error), error.remedy, 2)
    return 0


def _fail(message: str, remedy: str | None, code: int) -> int:
    print(f"paceline_lab.replay: error: {message}", file=sys.stderr)
    if remedy is not None:
        print(f"{TRY}{remedy}", file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(run())
