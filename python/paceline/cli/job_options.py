"""Options shared by `paceline run` and `paceline emulate run`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from paceline.cli import param_types as types
from paceline.cli.help_layout import Sections
from paceline.cli.usage import UsageError
from paceline.launch.hosts import MOST_RANKS, Host, Place, place
from paceline.settings.table import JOIN, of_place

if TYPE_CHECKING:
    from paceline.job.settings import Settings
    from paceline.launch.job import Elastic, Job
    from paceline.launch.output import Output
    from paceline.launch.request import Request


_STRATEGY, _OUTPUT = ("strategy", "transport", "chunk"), ("as_gloo", "verbose")
RANKS = types.whole(1, MOST_RANKS)
_PATH = click.Path(path_type=Path)

env = click.option(
    "-x",
    "--env",
    "names",
    multiple=True,
    metavar="NAME[=VALUE]",
    help="Environment variable for all ranks; repeat for more.",
)

switch = click.option(
    "--switch",
    is_flag=True,
    help="Start a process that aggregates as the switch (sharp, ps-aggregation).",
)


def strategy(place: str) -> types.Decorator:
    """The strategy and the transport."""
    return types.options(place, *_STRATEGY, checked=False)


def knobs(place: str) -> types.Decorator:
    """All other settings of the job: knobs of the strategy and of the network."""
    own = (*_STRATEGY, *_OUTPUT, "servers", "interface", "timeline")
    names = [one.name for one in of_place(place) if JOIN in one.uses and one.flag and one.name not in own]
    return types.options(place, *names, checked=False)


def output(place: str) -> types.Decorator:
    """Output, traces and timelines of a job."""
    return types.together(
        click.option("--no-prefix", is_flag=True, help="Print output without [rank 3] before each line."),
        click.option("--output-dir", type=_PATH, metavar="DIR", help="Write output to DIR/rank-N.log instead."),
        types.option(place, "grace_s", filled=True),
        types.option(place, "timeline", checked=False),
        click.option("--record", type=_PATH, metavar="FILE", help="Write a trace of all ranks, for paceline simulate."),
        click.option("--record-steps", type=types.COUNT, help="Steps to record.  [default: 10]"),
        click.option("--record-warmup", type=types.COUNT_OR_NONE, help="Warm-up steps to skip.  [default: 3]"),
        types.options(place, *_OUTPUT),
    )


SECTIONS: Sections = {
    "Gradient sync": (
        *("strategy", "chunk", "inside", "coordinator", "coordinator_plan", "servers", "placement", "distribution"),
        *("pull", "barrier", "staleness", "switch"),
    ),
    "Network and GPUs": ("transport", "native", "interface", "port", "streams", "multicast", "tls", "cuda"),
    "Recording and timelines": ("record", "record_steps", "record_warmup", "timeline"),
    "Elastic jobs (docs/how-to/elastic.md)": ("elastic", "least", "most", "resets", "script"),
    "Failures and output": ("timeout_s", "grace_s", "verbose", "no_prefix", "output_dir"),
}
"""Sections in the help of commands that start jobs, after their own."""

command = click.argument("command", nargs=-1, type=click.UNPROCESSED, metavar="[--] COMMAND…")


def request(
    command: tuple[str, ...],
    *,
    names: tuple[str, ...],
    no_prefix: bool,
    output_dir: Path | None,
    grace_s: float,
    record: Path | None,
    record_steps: int | None,
    record_warmup: int | None,
    as_gloo: bool | None,
    switch: bool,
    elastic: Callable[[Settings], Elastic] | None = None,
    **settings: object,
) -> tuple[Request, Callable[[Job], Output]]:
    """Return the launch request of these options, and where output goes. Raises UsageError."""
    from paceline.launch.output import Files, Terminal
    from paceline.launch.request import Request

    if no_prefix and output_dir is not None:
        raise UsageError("--no-prefix has no effect with --output-dir", remedy="drop --no-prefix")
    made = Request(
        command=command,
        settings=settings,
        given_by="flag",
        names=names,
        grace_s=grace_s,
        record=record,
        record_steps=record_steps,
        record_warmup=record_warmup,
        as_gloo=bool(as_gloo),
        switch=switch,
        elastic=elastic,
    )

    def to(job: Job) -> Output:
        if output_dir is not None:
            return Files(output_dir, job.names)
        return Terminal(job.names, prefix=not no_prefix)

    return made, to


# Options of `paceline run` for elastic jobs.


_RESETS = types.whole(0, 1_000_000)
_SLACK_S = 10.0
"""Added to the time within which every rank detects a silent peer."""

elastic_options = types.together(
    click.option("--elastic", is_flag=True, help="Replace dead ranks, and resume from the last commit."),
    click.option("--min-np", "least", type=RANKS, help="Fewest ranks to continue with.  [default: -np]"),
    click.option("--max-np", "most", type=RANKS, help="Most ranks, if discovery finds hosts.  [default: -np]"),
    click.option(
        "--reset-limit",
        "resets",
        type=_RESETS,
        help="Resets (new rendezvous) before the job ends.  [default: no limit]",
    ),
    click.option(
        "--host-discovery-script",
        "script",
        metavar="COMMAND",
        help="Command that prints HOST:N lines, run every second.",
    ),
)


@dataclass(frozen=True)
class ElasticOptions:
    """Values of the elastic options."""

    elastic: bool
    least: int | None
    most: int | None
    resets: int | None
    script: str | None

    def refuse_without(self) -> None:
        """Raise UsageError for an option that has no effect without --elastic."""
        named = {
            "--min-np": self.least,
            "--max-np": self.most,
            "--reset-limit": self.resets,
            "--host-discovery-script": self.script,
        }
        for option, value in named.items():
            if value is not None:
                raise UsageError(f"{option} needs --elastic", remedy=f"--elastic, or drop {option}")

    def places(self, ranks: int | None, hosts: Sequence[Host] | None) -> tuple[list[Place], int]:
        """Return all slots of the job and its maximum number of ranks. Raises UsageError, InvalidArgumentError."""
        if self.most is not None and self.script is None:
            raise UsageError(
                "--max-np needs --host-discovery-script", remedy="--host-discovery-script FILE, or drop --max-np"
            )
        if hosts is None and ranks is None:
            raise UsageError("the number of ranks is missing", remedy="paceline run --elastic -np 4 -- python train.py")
        slots = sum(host.slots for host in hosts) if hosts is not None else self.most or ranks or 0
        first = ranks if ranks is not None else self.most if self.most is not None else slots
        most = self.most if self.most is not None else first
        if most < first:
            raise UsageError(f"--max-np must be at least -np, {first}, not {most}", remedy=f"--max-np {first}")
        if self.least is not None and self.least > first:
            raise UsageError(f"--min-np must be at most -np, {first}, not {self.least}", remedy=f"--min-np {first}")
        if hosts is None:
            return [Place(Host("localhost", most), 0, most)], most
        place(list(hosts), most)  # for its checks; spare slots are used when others are closed
        return place(list(hosts), None), most

    def for_launcher(self, first: int, most: int, port: int | None) -> Callable[[Settings], Elastic]:
        """Return a function that makes the launcher's elastic options from the settings."""

        def of(settings: Settings) -> Elastic:
            from paceline.launch.elastic.discovery import Discovery
            from paceline.launch.elastic.roster import Limits
            from paceline.launch.job import Elastic

            limits = Limits(
                least=self.least if self.least is not None else first,
                most=most,
                resets=self.resets,
                start_s=settings.start_timeout_s or Limits.start_s,
                return_s=settings.timeout_s + _SLACK_S,
            )
            discovery = Discovery(self.script) if self.script is not None else None
            return Elastic(limits=limits, discovery=discovery, port=port or 0)

        return of


def take_elastic(given: dict[str, Any]) -> ElasticOptions:
    """Take the elastic options out of `given`."""
    return ElasticOptions(**{name: given.pop(name) for name in ("elastic", "least", "most", "resets", "script")})
