"""The options that `paceline run` and `paceline emulate run` have in common."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from paceline.cli import param_types as types
from paceline.errors import InvalidArgumentError
from paceline.launch.hosts import MOST_RANKS, Host, Place, place
from paceline.settings import kinds

if TYPE_CHECKING:
    from paceline.job.settings import Settings
    from paceline.launch.job import Elastic, Job
    from paceline.launch.output import Output
    from paceline.launch.request import Request


def _grace(text: str) -> float:
    seconds: float = kinds.POSITIVE.check(text)
    if seconds > kinds.LONGEST_TIMEOUT_S:
        raise InvalidArgumentError(f"'{text[:80]}' is more than {kinds.LONGEST_TIMEOUT_S:.0f} s")
    return seconds


RANKS = types.whole(1, MOST_RANKS)
_PATH = click.Path(path_type=Path)

env = click.option(
    "-x", "--env", "names", multiple=True, metavar="NAME[=VALUE]", help="Set for all ranks, on all hosts."
)

switch = click.option(
    "--switch", is_flag=True, help="A process of its own adds up in the switch's place (ps-aggregation)."
)


def strategy(place: str) -> types.Decorator:
    """What is run."""
    return types.options(place, "strategy", "transport", "chunk", checked=False)


def knobs(place: str) -> types.Decorator:
    """How it is run."""
    names = ("placement", "distribution", "pull", "coordinator", "inside", "streams", "multicast", "tls", "timeout_s")
    return types.options(place, *names, checked=False)


def output(place: str) -> types.Decorator:
    """What a job leaves behind and says."""
    return types.together(
        click.option("--no-prefix", is_flag=True, help="Without `[rank 3] ` before each line."),
        click.option(
            "--output-dir", type=_PATH, metavar="DIR", help="Write what rank N prints to DIR/rank-N.log instead."
        ),
        click.option(
            "--grace",
            type=types.Value("SECONDS", _grace),
            default="5",
            help="Others have so long to end, once a rank failed.  [default: 5]",
        ),
        types.option(place, "timeline", checked=False),
        click.option(
            "--record", type=_PATH, metavar="FILE", help="Record a trace of every rank, for `paceline simulate`."
        ),
        click.option("--record-steps", type=types.COUNT, help="Steps to take the median of.  [default: 10]"),
        click.option("--record-warmup", type=types.COUNT_OR_NONE, help="Steps before the recorded ones.  [default: 3]"),
        types.options(place, "as_gloo", "verbose"),
    )


command = click.argument("command", nargs=-1, type=click.UNPROCESSED, metavar="[--] COMMAND…")


def request(
    command: tuple[str, ...],
    *,
    names: tuple[str, ...],
    no_prefix: bool,
    output_dir: Path | None,
    grace: float,
    record: Path | None,
    record_steps: int | None,
    record_warmup: int | None,
    as_gloo: bool | None,
    switch: bool,
    elastic: Callable[[Settings], Elastic] | None = None,
    **settings: object,
) -> tuple[Request, Callable[[Job], Output]]:
    """What these options ask for, and where the output goes. Raises UsageError."""
    from paceline.launch.output import Files, Terminal
    from paceline.launch.request import Request

    if no_prefix and output_dir is not None:
        raise click.UsageError("--no-prefix has no effect with --output-dir; leave one of them out")
    asked = Request(
        command=command,
        settings=settings,
        given_by="flag",
        names=names,
        grace_s=grace,
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

    return asked, to


# The options of `paceline run` for jobs whose ranks may die and come.


_RESETS = types.whole(0, 1_000_000)
_SLACK_S = 10.0
"""Beyond the time in which every rank notices that another is silent."""

options = types.together(
    click.option(
        "--elastic", is_flag=True, help="Replace ranks that die; go on from the last commit (docs/how-to/elastic.md)."
    ),
    click.option("--min-np", "least", type=RANKS, help="Go on with so few, until others come.  [default: -np]"),
    click.option("--max-np", "most", type=RANKS, help="Ranks at most, if the script finds more.  [default: -np]"),
    click.option(
        "--reset-limit",
        "resets",
        type=_RESETS,
        help="End the job when ranks meet anew more often.  [default: no limit]",
    ),
    click.option("--host-discovery-script", "script", metavar="COMMAND", help="Prints HOST:N lines, every second."),
)


@dataclass(frozen=True)
class Wanted:
    """What the options say."""

    elastic: bool
    least: int | None
    most: int | None
    resets: int | None
    script: str | None

    def refuse_without(self) -> None:
        """Raises UsageError for an option that does nothing without --elastic."""
        named = {
            "--min-np": self.least,
            "--max-np": self.most,
            "--reset-limit": self.resets,
            "--host-discovery-script": self.script,
        }
        for option, value in named.items():
            if value is not None:
                raise click.UsageError(f"{option} has no effect without --elastic")

    def places(self, ranks: int | None, hosts: Sequence[Host] | None) -> tuple[list[Place], int]:
        """All slots of the job, and how many of them it takes at most. Raises UsageError, InvalidArgumentError."""
        if self.most is not None and self.script is None:
            raise click.UsageError("--max-np has no effect without --host-discovery-script, which finds more")
        if hosts is None and ranks is None:
            raise click.UsageError(
                "how many ranks? give -np N, or hosts: paceline run --elastic -np 4 -- python train.py"
            )
        slots = sum(host.slots for host in hosts) if hosts is not None else self.most or ranks or 0
        first = ranks if ranks is not None else self.most if self.most is not None else slots
        most = self.most if self.most is not None else first
        if most < first:
            raise click.UsageError(f"--max-np {most} is less than -np {first}")
        if self.least is not None and self.least > first:
            raise click.UsageError(f"--min-np {self.least} is more than -np {first}")
        if hosts is None:
            return [Place(Host("localhost", most), 0, most)], most
        place(list(hosts), most)  # for its checks; spare slots take ranks when others are closed
        return place(list(hosts), None), most

    def how(self, first: int, most: int, port: int | None) -> Callable[[Settings], Elastic]:
        """What the launcher is told, once the settings are known."""

        def of(settings: Settings) -> Elastic:
            from paceline.launch.elastic.discovery import Discovery
            from paceline.launch.elastic.roster import Limits
            from paceline.launch.job import Elastic

            limits = Limits(
                least=self.least if self.least is not None else first,
                most=most,
                resets=self.resets,
                start_s=settings.start_timeout_s,
                return_s=settings.timeout_s + _SLACK_S,
            )
            discovery = Discovery(self.script) if self.script is not None else None
            return Elastic(limits=limits, discovery=discovery, port=port or 0)

        return of


def wanted(given: dict[str, Any]) -> Wanted:
    """Takes what these options gave out of what was given."""
    return Wanted(**{name: given.pop(name) for name in ("elastic", "least", "most", "resets", "script")})
