"""Options of horovodrun that `paceline run` does not have: what to do instead, as their users type them first."""

from __future__ import annotations

import click

from paceline.cli.command import Command
from paceline.cli.usage import UsageError

_TUNING = "drop {option} (Paceline tunes the strategy by message size at startup)"
_ONE = "drop {option} (Paceline needs neither Gloo nor MPI)"
_MPI = "drop {option}, or --transport mpi (sends through an MPI library)"
_BUILD = "paceline doctor --env"
_INSTEAD = {
    "--gloo": _ONE,
    "--use-gloo": _ONE,
    "--mpi": _MPI,
    "--use-mpi": _MPI,
    "--mpi-args": "mpirun -n 4 python train.py (docs/how-to/mpirun.md)",
    "--check-build": _BUILD,
    "-cb": _BUILD,
    "--version": "paceline --version",
    "--start-timeout": "-x PACELINE_START_TIMEOUT=60",
    "--fusion-threshold-mb": "-x HOROVOD_FUSION_THRESHOLD=67108864 (bytes)",
    "--cycle-time-ms": "-x HOROVOD_CYCLE_TIME=1",
    "--cache-capacity": "-x HOROVOD_CACHE_CAPACITY=1024",
    "--disable-cache": "-x HOROVOD_CACHE_CAPACITY=0",
    "--no-stall-check": "-x HOROVOD_STALL_CHECK_DISABLE=1",
    "--stall-check-warning-time-seconds": "-x HOROVOD_STALL_CHECK_TIME_SECONDS=60",
    "--stall-check-shutdown-time-seconds": "-x HOROVOD_STALL_SHUTDOWN_TIME_SECONDS=600",
    "--thread-affinity": "-x HOROVOD_THREAD_AFFINITY=0,1",
    "--hierarchical-allreduce": "--strategy hierarchical",
    "--network-interface": "--interface eth0",
    "--network-interfaces": "--interface eth0",
    "--ssh-port": "--rsh 'ssh -p 2222'",
    "-p": "--rsh 'ssh -p 2222'",
    "--ssh-identity-file": "--rsh 'ssh -i FILE'",
    "-i": "--rsh 'ssh -i FILE'",
    "--autotune": _TUNING,
    "--autotune-log-file": _TUNING,
}
"""Our options, by horovodrun's."""


class Horovodrun(Command):
    """A command that knows what horovodrun's options are here."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the command line.

        Args:
            ctx: That of the command.
            args: The words.

        Raises:
            click.NoSuchOption: There is no such option.
            UsageError: It is one of horovodrun's.
        """
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            instead = _INSTEAD.get(error.option_name)
            if instead is None:
                raise
            remedy = instead.format(option=error.option_name)
            raise UsageError(f"unknown option {error.option_name}, which is horovodrun's", ctx, remedy=remedy) from None
