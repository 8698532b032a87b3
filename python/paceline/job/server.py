"""A parameter server: `python -m paceline.job.server`, started by `paceline run --strategy ps --servers K`.

It joins the job after the ranks that train, reduces their data until all have left (or applies their gradients, under
`async-ps`), and then waits for them to return, because a script may leave the job and join another. It runs until its
launcher stops it. The process that acts as the switch (`--switch`) does the same, after the servers; in a cluster with
racks there are several.
"""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from typing import NoReturn

from paceline._core import Engine
from paceline._internal.extras import install
from paceline.errors import InvalidArgumentError, JobError
from paceline.job import timeline_files
from paceline.job.settings import LONGEST_TIMEOUT_S, Settings


def main() -> int:
    """Serve until this process is stopped."""
    try:
        serve()
    except KeyError:
        print("paceline.job.server can only be started by paceline run --strategy ps --servers K", file=sys.stderr)
        return 2
    except (JobError, InvalidArgumentError) as error:
        print(f"paceline: {error}", file=sys.stderr)
        return 1


def serve() -> NoReturn:
    """Serve until this process is stopped, as the server that the environment names.

    Raises KeyError without it; JobError if the job cannot be joined, InvalidArgumentError for a setting. Messages name
    the server.
    """
    try:
        number, workers = int(os.environ["PACELINE_RUN_SERVER"]), int(os.environ["WORLD_SIZE"])
    except ValueError as error:
        raise KeyError(str(error)) from None
    settings = Settings.from_environment()
    # Workers may do other things first.
    settings = replace(settings, start_timeout_s=LONGEST_TIMEOUT_S)
    name = f"server {number}"
    if number >= settings.server_processes:
        name = "switch" if settings.switch_processes == 1 else f"switch {number - settings.server_processes}"
    while True:
        try:
            engine = Engine.start(workers + number, workers + settings.helpers, settings.to_json())
        except InvalidArgumentError as error:
            raise error.within(name) from None
        except JobError as error:
            raise JobError(f"{name}: {error}", remedy=error.remedy) from None
        if settings.timeline is not None:
            timeline_files.begin(engine, settings.timeline)
        try:
            if settings.is_asynchronous:
                _apply_gradients(engine, workers, settings)
            else:
                while not engine.serve(0.2):
                    pass
        finally:
            engine.close()


def _apply_gradients(engine: Engine, workers: int, settings: Settings) -> None:
    """Serve asynchronous training until all workers have left. Raises InvalidArgumentError if torch is missing."""
    try:
        from paceline.async_ps.service import Service
    except ImportError as error:
        raise InvalidArgumentError(
            f"async-ps: servers run torch's optimizers: {error}", remedy=install("torch")
        ) from None
    Service(engine, workers, settings.timeout_s, marks=settings.timeline is not None).run()


if __name__ == "__main__":
    sys.exit(main())
