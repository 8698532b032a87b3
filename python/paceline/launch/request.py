"""What is asked of a job, wherever it runs: checked, run, and what it leaves put together."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import click

from paceline._internal.files import check_writable
from paceline.as_gloo import VARIABLE as AS_GLOO
from paceline.errors import InvalidArgumentError
from paceline.job import timeline_files
from paceline.job.settings import OVER_MPI, Settings
from paceline.launch import injection, merge, variables
from paceline.launch.elastic.supervisor import ElasticSupervisor
from paceline.launch.hosts import Place
from paceline.launch.job import Elastic, Job
from paceline.launch.output import Output
from paceline.launch.supervisor import Supervisor
from paceline.settings.table import SETTINGS, as_text, find, renamed


@dataclass(frozen=True, kw_only=True)
class Request:
    """The options that all jobs have."""

    command: Sequence[str]
    settings: Mapping[str, object] = field(default_factory=dict)
    """By their names in `paceline.settings.table`; None is as good as none."""
    given_by: Literal["flag", "keyword"] = "keyword"
    """How, for messages."""
    names: Sequence[str] = ()
    """Variables for all ranks: NAME or NAME=VALUE."""
    grace_s: float = 5.0
    record: Path | None = None
    record_steps: int | None = None
    record_warmup: int | None = None
    as_gloo: bool = False
    """Process groups that ask for gloo are Paceline's."""
    switch: bool = False
    """A process of its own adds up in the switch's place."""
    limit_s: float = float("inf")
    elastic: Callable[[Settings], Elastic] | None = None
    """Ranks may die and come: how, once the settings are known."""

    def checked(self) -> Checked:
        """Everything that can be found out before a rank is started. Raises InvalidArgumentError, UsageError."""
        recording = self._recording()
        named = variables.named(self.names, os.environ)
        said = {renamed(name): value for name, value in self.settings.items() if value is not None}
        # What -x names wins.
        said = {name: value for name, value in said.items() if find(name).variable not in named}
        environ = {**os.environ, **named}
        # Once here, not once in every rank.
        settings = Settings.resolved(environ, said, self.given_by)
        # Ranks run in folders of their own.
        given = {
            SETTINGS[name].variable: as_text(getattr(settings, name) if name in ("timeline", "placement") else value)
            for name, value in said.items()
        }
        if self.as_gloo:
            given[AS_GLOO] = "1"
        if settings.transport in OVER_MPI:
            raise InvalidArgumentError(
                f"transport {settings.transport}: MPI's own mpirun starts its ranks: mpirun -n 2 env "
                f"PACELINE_TRANSPORT={settings.transport} {' '.join(self.command)[:80]} (docs/how-to/mpi.md); or take "
                "another transport"
            )
        if self.switch and not settings.has_switch():
            raise click.UsageError("--switch is for strategies with a switch, such as --strategy ps-aggregation")
        if self.elastic is not None:
            self._check_elastic(settings)
        return Checked(self, given, named, recording, settings)

    def _check_elastic(self, settings: Settings) -> None:
        """What is not for jobs whose ranks change. Raises UsageError."""
        for option, given in (
            ("--switch", self.switch),
            ("--record", self.record),
            ("--timeline", settings.timeline),
            ("--multicast", settings.multicast),
            ("--placement FILE", settings.placed()),
        ):
            if given:
                raise click.UsageError(f"{option} is not for --elastic, whose ranks change; leave one of them out")

    def _recording(self) -> dict[str, int] | None:
        """What ranks are asked to record."""
        if self.record is None:
            for option, value in (("--record-steps", self.record_steps), ("--record-warmup", self.record_warmup)):
                if value is not None:
                    raise click.UsageError(f"{option} has no effect without --record FILE")
            return None
        if injection.SETTINGS in os.environ:
            raise click.UsageError("--record does nothing inside `paceline record`; leave one of them out")
        check_writable("--record", self.record)
        steps, warmup = self.record_steps, self.record_warmup
        return {"steps": 10 if steps is None else steps, "warmup": 3 if warmup is None else warmup}


@dataclass(frozen=True)
class Checked:
    """A request that can be run."""

    request: Request
    given: Mapping[str, str]
    named: Mapping[str, str]
    recording: Mapping[str, int] | None
    settings: Settings

    @property
    def servers(self) -> int:
        """Processes that are parameter servers. Those of an elastic job are roles of its ranks."""
        if self.request.elastic is not None:
            return 0
        return self.settings.servers if self.settings.has_servers() else 0

    @property
    def helpers(self) -> int:
        """Servers, and the process in the switch's place."""
        return self.servers + self.request.switch

    def run(self, places: Sequence[Place], output: Callable[[Job], Output], **where: Any) -> int:  # noqa: ANN401
        """Until all ranks have ended: the exit code. `where`: what else `Job` must know to find the hosts.

        Raises InvalidArgumentError, ClickException.
        """
        elastic = None if self.request.elastic is None else self.request.elastic(self.settings)
        job = Job(
            command=self.request.command,
            places=places,
            settings=self.given,
            named=self.named,
            secret=self.settings.secret or secrets.token_hex(32),
            grace_s=self.request.grace_s,
            verbose=self.settings.verbose,
            record=self.recording,
            switch=self.request.switch,
            limit_s=self.request.limit_s,
            elastic=elastic,
            **where,
        )
        supervisor = Supervisor(job, output(job)) if elastic is None else ElasticSupervisor(job, elastic, output(job))
        code = supervisor.run()
        self._finish(supervisor, code)
        return code

    def _finish(self, supervisor: Supervisor, code: int) -> None:
        """Timeline and trace."""
        if self.settings.timeline is not None:
            timeline_files.say(timeline_files.gather(self.settings.timeline))
        path = self.request.record
        if path is not None and self.recording is not None:
            said = f"no trace was written to {path}: the ranks did not end well"
            if code == 0:
                said = merge.write(path, supervisor.records, supervisor.job.size, self.recording["steps"])
            click.echo(f"paceline: {said}", err=True)
