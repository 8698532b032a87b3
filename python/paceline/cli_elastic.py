"""The options of `paceline run` for jobs whose ranks may die and come."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from paceline import cli_types as types
from paceline.cli_job import RANKS, together
from paceline.launch.hosts import Host, Place, place

if TYPE_CHECKING:
    from paceline.launch.job import Elastic
    from paceline.settings import Settings

_RESETS = types.Value("N", types.whole(0, 1_000_000))
_SLACK_S = 10.0
"""Beyond the time in which every rank notices that another is silent."""

options = together(
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
        """All slots of the job, and how many of them it takes at most. Raises UsageError, UserError."""
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
            from paceline.elastic.discovery import Discovery
            from paceline.elastic.roster import Limits
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
