"""Options of horovodrun that `paceline run` does not have: what to do instead, as their users type them first."""

from __future__ import annotations

import click

from paceline.cli.help_layout import Command

_TUNING = "leave it out: Paceline tunes the strategy for each message size at startup"
_ONE = "leave it out: Paceline needs neither Gloo nor MPI"
_INSTEAD = {
    "--gloo": _ONE,
    "--use-gloo": _ONE,
    "--mpi": f"{_ONE}; --transport mpi sends through an MPI library",
    "--use-mpi": f"{_ONE}; --transport mpi sends through an MPI library",
    "--mpi-args": "start the ranks by mpirun instead: docs/how-to/mpirun.md",
    "--check-build": "`paceline doctor --env` says what this machine has",
    "-cb": "`paceline doctor --env` says what this machine has",
    "--version": "`paceline --version` prints it",
    "--start-timeout": "set PACELINE_START_TIMEOUT=SECONDS",
    "--fusion-threshold-mb": "set HOROVOD_FUSION_THRESHOLD=BYTES",
    "--cycle-time-ms": "set HOROVOD_CYCLE_TIME=MILLISECONDS",
    "--cache-capacity": "set HOROVOD_CACHE_CAPACITY=N",
    "--disable-cache": "set HOROVOD_CACHE_CAPACITY=0",
    "--no-stall-check": "set HOROVOD_STALL_CHECK_DISABLE=1",
    "--stall-check-warning-time-seconds": "set HOROVOD_STALL_CHECK_TIME_SECONDS=SECONDS",
    "--stall-check-shutdown-time-seconds": "set HOROVOD_STALL_SHUTDOWN_TIME_SECONDS=SECONDS",
    "--thread-affinity": "set HOROVOD_THREAD_AFFINITY=CORES",
    "--hierarchical-allreduce": "--strategy hierarchical",
    "--network-interface": "--interface NAME",
    "--network-interfaces": "--interface NAME",
    "--ssh-port": "--rsh 'ssh -p PORT'",
    "-p": "--rsh 'ssh -p PORT'",
    "--ssh-identity-file": "--rsh 'ssh -i FILE'",
    "-i": "--rsh 'ssh -i FILE'",
    "--autotune": _TUNING,
    "--autotune-log-file": _TUNING,
}


class Horovodrun(Command):
    """A command that knows what horovodrun's options are here."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the command line.

        Args:
            ctx: That of the command.
            args: The words.

        Raises:
            click.NoSuchOption: There is no such option; one of horovodrun says what to do instead.
        """
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            instead = _INSTEAD.get(error.option_name)
            if instead is None:
                raise
            raise _OfHorovodrun(error.option_name, instead, ctx) from None


class _OfHorovodrun(click.NoSuchOption):
    def __init__(self, name: str, instead: str, ctx: click.Context) -> None:
        super().__init__(name, ctx=ctx)
        self._instead = instead

    def format_message(self) -> str:
        return f"No such option '{self.option_name}', which is horovodrun's: {self._instead}"
