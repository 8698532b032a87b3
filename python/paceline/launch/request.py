"""The request for a job: checks it, runs it, and merges its recordings and timelines."""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import click

from paceline import _core
from paceline._internal.console import say
from paceline._internal.files import check_distinct, check_writable
from paceline._internal.units import printable
from paceline.as_gloo import VARIABLE as AS_GLOO
from paceline.errors import InvalidArgumentError
from paceline.job import timeline_files
from paceline.job.settings import OVER_MPI, OVER_UCX, Settings, ucx_package
from paceline.launch import injection, merge, variables
from paceline.launch.elastic.supervisor import ElasticSupervisor
from paceline.launch.hosts import Place, is_this_machine
from paceline.launch.job import Elastic, Job
from paceline.launch.output import Output
from paceline.launch.supervisor import Supervisor
from paceline.settings.table import SETTINGS, as_text, find, renamed

_NOBODY_RECORDED = (
    "no rank joined a job that records it (scripts that use gloo need init_process_group('paceline') or --as-gloo)"
)


@dataclass(frozen=True, kw_only=True)
class Request:
    """Options of all jobs."""

    command: Sequence[str]
    settings: Mapping[str, object] = field(default_factory=dict)
    """Settings by their names in `paceline.settings.table`; None counts as not given."""
    given_by: Literal["flag", "keyword"] = "keyword"
    """The names of settings in messages."""
    names: Sequence[str] = ()
    """Environment variables for all ranks: NAME or NAME=VALUE."""
    grace_s: float = 5.0
    record: Path | None = None
    record_steps: int | None = None
    record_warmup: int | None = None
    as_gloo: bool = False
    """Whether to run process groups of the backend gloo on Paceline."""
    switch: bool = False
    """Whether to start a separate process that aggregates in the switch's place."""
    limit_s: float = float("inf")
    elastic: Callable[[Settings], Elastic] | None = None
    """Makes the options of an elastic job from its settings; None if the job is not elastic."""

    def checked(self) -> Checked:
        """Check everything that can be checked before a rank starts. Raises InvalidArgumentError."""
        recording = self._recording()
        named = variables.named(self.names, os.environ)
        values = {renamed(name): value for name, value in self.settings.items() if value is not None}
        # -x takes precedence.
        values = {name: value for name, value in values.items() if find(name).variable not in named}
        environ = {**os.environ, **named}
        # Checked once here, so that not every rank reports the same mistake.
        if environ.get(AS_GLOO):
            SETTINGS["as_gloo"].check(environ[AS_GLOO], SETTINGS["as_gloo"].source("variable"))
        settings = Settings.resolved(environ, values, self.given_by)
        check_distinct([("--record", self.record), ("--timeline", settings.timeline)], self.command)
        # Ranks may have other working directories, so paths are absolute.
        given = {
            SETTINGS[name].variable: as_text(getattr(settings, name) if name in ("timeline", "placement") else value)
            for name, value in values.items()
        }
        if self.as_gloo:
            given[AS_GLOO] = "1"
        if settings.transport in OVER_MPI:
            raise InvalidArgumentError(
                f"transport {settings.transport}: needs ranks started by mpirun",
                remedy=f"mpirun -n 2 env PACELINE_TRANSPORT={settings.transport} {' '.join(self.command)[:80]}",
            )
        if self.switch and not settings.has_switch():
            raise InvalidArgumentError(
                "--switch is for strategies with a switch",
                remedy="--strategy sharp or ps-aggregation, or drop --switch",
            )
        settings.placed()
        if self.elastic is not None:
            self._check_elastic(settings)
        return Checked(self, given, named, recording, settings)

    def _check_elastic(self, settings: Settings) -> None:
        """Refuse options that jobs with changing ranks do not support. Raises InvalidArgumentError."""
        for option, given in (
            ("--switch", self.switch),
            ("--strategy async-ps", settings.is_asynchronous),
            ("--record", self.record),
            ("--timeline", settings.timeline),
            ("--multicast", settings.multicast),
            ("--placement FILE", settings.placed()),
        ):
            if given:
                raise InvalidArgumentError(
                    f"{option} does not work with --elastic, whose ranks change",
                    remedy=f"drop {option}, or drop --elastic",
                )

    def _recording(self) -> dict[str, int] | None:
        """Return what ranks record; None for nothing."""
        if self.record is None:
            for option, value in (("--record-steps", self.record_steps), ("--record-warmup", self.record_warmup)):
                if value is not None:
                    raise InvalidArgumentError(f"{option} needs --record", remedy="--record mine.json")
            return None
        if injection.SETTINGS in os.environ:
            raise InvalidArgumentError("--record records already inside `paceline record`", remedy="drop --record")
        check_writable("--record", self.record)
        steps, warmup = self.record_steps, self.record_warmup
        return {"steps": 10 if steps is None else steps, "warmup": 3 if warmup is None else warmup}


@dataclass(frozen=True)
class Checked:
    """A checked request, ready to run."""

    request: Request
    given: Mapping[str, str]
    named: Mapping[str, str]
    recording: Mapping[str, int] | None
    settings: Settings
    switches: tuple[int | None, ...] = ()
    """For each process that acts as a switch, its rack; None if it connects racks. Set by `on`."""
    nodes_per_rack: int | None = None

    def on(self, hosts: int, nodes_per_rack: int | None = None) -> Checked:
        """Return the request for so many hosts with ranks, in racks of so many. Raises InvalidArgumentError."""
        if not self.request.switch or self.settings.strategy is None:
            return replace(self, nodes_per_rack=nodes_per_rack)
        racks = tuple(json.loads(_core.switches(self.settings.strategy, hosts, nodes_per_rack)))
        if not racks:
            raise InvalidArgumentError(
                f"--switch has no effect, as {self.settings.strategy} adds up on a single host without a switch",
                remedy="drop --switch, or --hosts node1:2,node2:2",
            )
        return replace(self, switches=racks, nodes_per_rack=nodes_per_rack)

    @property
    def servers(self) -> int:
        """Number of server processes; 0 in an elastic job, whose ranks also act as servers."""
        if self.request.elastic is not None:
            return 0
        return self.settings.servers if self.settings.has_servers() else 0

    @property
    def helpers(self) -> int:
        """Number of servers, including the processes that act as switches."""
        return self.servers + len(self.switches)

    def run(self, places: Sequence[Place], output: Callable[[Job], Output], **where: Any) -> int:  # noqa: ANN401
        """Run the job and return its exit code. `where`: further fields of `Job` that say how to reach the hosts.

        Raises InvalidArgumentError, ClickException.
        """
        if self.settings.transport in OVER_UCX and all(is_this_machine(place.host.name) for place in places):
            # Checked once here, so that not every rank reports the same mistake.
            _core.ucx_library(self.settings.ucx_library, ucx_package(), self.settings.transport)
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
            switches=len(self.switches),
            nodes_per_rack=self.nodes_per_rack,
            limit_s=self.request.limit_s,
            elastic=elastic,
            **where,
        )
        supervisor = Supervisor(job, output(job)) if elastic is None else ElasticSupervisor(job, elastic, output(job))
        with timeline_files.replacing(self.settings.timeline, job.number):
            try:
                code = supervisor.run()
                self._write_trace(supervisor, code)
                return code if self._write_timeline(supervisor) else code or 1
            finally:
                supervisor.conclude()

    def _write_timeline(self, supervisor: Supervisor) -> bool:
        """Return whether there is a timeline, if one was requested; say where it is, or why there is none."""
        path, job = self.settings.timeline, supervisor.job
        if path is None:
            return True
        try:
            message = timeline_files.gather(path, job.number)
        except InvalidArgumentError as error:
            timeline_files.say(f"error: {error}")
            return False
        if message is not None:
            timeline_files.say(message)
            return True
        remote = all(host.remote for host in supervisor.hosts)
        where = "its parts may be on the hosts of the ranks" if remote else _NOBODY_RECORDED
        timeline_files.say(f"{'note' if remote else 'error'}: timeline {path}: there is none here: {where}")
        return remote

    def _write_trace(self, supervisor: Supervisor, code: int) -> None:
        """Write the trace, if one was requested."""
        path = self.request.record
        if path is not None and self.recording is not None:
            if code != 0:
                click.echo(
                    f"paceline: no trace was written to {printable(str(path))}, because the job failed", err=True
                )
                return
            lines = merge.write(path, supervisor.records, supervisor.job.size, self.recording["steps"])
            say(lines, err=True)
