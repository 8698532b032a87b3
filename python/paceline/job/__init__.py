"""A job from Python, without torch: join it, and reduce and exchange numpy arrays with the other ranks.

    import numpy as np
    import paceline

    with paceline.job.join() as job:
        total = job.all_reduce(np.full(1000, job.rank, "float32"))

`paceline run -np 4 -- python script.py` starts the ranks; docs/how-to/running.md describes other launchers. numpy is
optional: any object with `__array_interface__` or the buffer protocol will do.

| module | contents |
| --- | --- |
| job | joining and leaving |
| collectives | groups and their operations; handles of operations in flight |
| arrays | the memory of arrays |
| objects | JSON documents exchanged between ranks |
| settings | the settings of a job, from keywords and the environment |
| rank_environment, slurm | which rank this process is, according to its launcher |
| bootstrap | what ranks exchange before they connect: the secret, MPI's own exchange |
| elastic_member, elastic_protocol | a worker's side of an elastic job |
| server | a parameter server as a process: `python -m paceline.job.server` |
| timeline_files, selection_log | timelines of a job, and the strategies it selected |
| failure | a failed rank's report to its launcher |
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from paceline._internal.lazy import lazy

if TYPE_CHECKING:
    from paceline.errors import InvalidArgumentError, JobError
    from paceline.job.collectives import Handle
    from paceline.job.job import Group, Job, join

    UserError = InvalidArgumentError  # its old name

__all__ = ["Group", "Handle", "InvalidArgumentError", "Job", "JobError", "join"]

if not TYPE_CHECKING:  # type checkers would take `__getattr__` for a definition of every name
    __getattr__, __dir__ = lazy(
        __name__,
        {
            "paceline.job.job": ["Group", "Job", "join"],
            "paceline.job.collectives": ["Handle"],
            "paceline.errors": ["InvalidArgumentError", "JobError"],
        },
        renamed={"UserError": "InvalidArgumentError"},
    )
