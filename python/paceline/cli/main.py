"""The command line: subcommands, imported when they are called, and the one place where errors become messages."""

from __future__ import annotations

import contextlib
import errno
import functools
import importlib
import importlib.metadata
import os
import sys
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

import click

from paceline._core import __version__
from paceline._internal import import_path
from paceline._internal.files import NO_WORKING_DIRECTORY, working_directory_is_gone
from paceline._internal.units import printable
from paceline.cli.command import Group
from paceline.cli.meant import meant
from paceline.cli.usage import called, show_error
from paceline.errors import InternalError, InvalidArgumentError, JobError
from paceline.job.failure import report_error

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

Entry = tuple[str, str, str, str]
"""A command: its section in the help, its module, its attribute there, and its help text."""
Table = dict[str, Entry]
"""Commands by name. Heavy modules are not loaded until their command is called."""

_FORECAST, _TRAIN, _MEASURE = "Forecast", "Train", "Measure"
_CATALOG, _IMPORTS = "Catalog", "Import and export"
_START = """\
Forecast, run and diagnose distributed training.

You have a training script: record ten steps, forecast 8 and 64 GPUs, train
  paceline record -o mine.json -- python train.py
  paceline simulate mine.json --gpus 8,64 --explain
  paceline run -np 4 -- python train.py

You have a model's name: forecast it, or find the fastest setup that fits
  paceline simulate llama-3-8b --gpu h100 --gpus 64 --sharding zero3
  paceline advise llama-3-8b --gpu h100 --gpus 64

Your run is slow: write a timeline, read where the time goes
  paceline run -np 4 --timeline run.json -- python train.py
  paceline doctor run.json

It is slower than it should be: compare it with its forecast
  paceline compare gpt2-xl --gpu a100 --gpus 8 --measured 900ms

Usage: paceline COMMAND
  paceline --help             all commands
  paceline COMMAND --help     its options, with examples
  paceline list               models, GPUs, traces, clusters, strategies
"""
"""The screen of `paceline` alone: first commands of those who have a script, a model's name, or a slow run."""
COMMANDS: Table = {
    "simulate": (
        _FORECAST,
        "paceline.cli.simulate",
        "simulate",
        "Forecast throughput, scaling and memory of training.",
    ),
    "advise": (_FORECAST, "paceline.cli.advise", "advise", "Find the fastest configurations of a model that fit."),
    "compare": (_FORECAST, "paceline.cli.compare", "compare", "Explain why a run is slower than its forecast."),
    "run": (_TRAIN, "paceline.cli.run", "run", "Start the ranks of a job, here or on several hosts."),
    "record": (_TRAIN, "paceline.cli.record", "record", "Record a trace of training steps, or estimate it for a GPU."),
    "doctor": (_TRAIN, "paceline.cli.doctor", "doctor", "Show where the time of a run goes, and what to try."),
    "probe": (_MEASURE, "paceline.cli.probe", "probe", "Measure a job's network and machines, for forecasts."),
    "calibrate": (_MEASURE, "paceline.cli.calibrate", "calibrate", "Measure a device's operators, for forecasts."),
    "list": (
        _CATALOG,
        "paceline.cli.main",
        "list_",
        "Models, GPUs, instances, traces, clusters, strategies, libraries.",
    ),
    "import": (_IMPORTS, "paceline.cli.main", "import_", "Make a trace from kineto, chakra, tensorflow or sends."),
    "export": (_IMPORTS, "paceline.cli.main", "export", "Write a trace for ASTRA-sim (chakra)."),
}
LISTS: Table = {
    "models": ("", "paceline.cli.models", "models", "List the built-in models, or show one on a GPU."),
    "gpus": ("", "paceline.cli.models", "gpus", "List the GPU types for --gpu, or show one."),
    "clusters": ("", "paceline.cli.catalog", "clusters", "List the built-in clusters, or show one."),
    "instances": ("", "paceline.cli.instances", "instances", "List clouds' instances with prices, or show one."),
    "traces": ("", "paceline.cli.catalog", "traces", "List the built-in traces, or show one."),
    "strategies": ("", "paceline.cli.catalog", "strategies", "List the strategies, and the options of each."),
    "libraries": ("", "paceline.cli.catalog", "libraries", "List the frameworks that --library models, or show one."),
}
IMPORTS: Table = {
    "kineto": ("", "paceline.cli.import_kineto", "import_kineto", "Make a trace from torch.profiler's Chrome traces."),
    "chakra": ("", "paceline.cli.chakra", "import_chakra", "Make a trace from Chakra execution traces."),
    "tensorflow": (
        "",
        "paceline.cli.import_tensorflow",
        "import_tensorflow",
        "Make a trace from TensorFlow's timelines or profiles.",
    ),
    "sends": ("", "paceline.cli.import_sends", "import_sends", "Make a trace from two CSV recordings of sends."),
}
EXPORTS: Table = {
    "chakra": ("", "paceline.cli.chakra", "export_chakra", "Write Chakra execution traces, for ASTRA-sim."),
}
FORMER: Table = {
    **{name: entry for name, entry in LISTS.items() if name != "instances"},
    **{f"import-{name}": entry for name, entry in IMPORTS.items() if name != "tensorflow"},
    **{f"export-{name}": entry for name, entry in EXPORTS.items()},
}
"""Former names of commands, which work; the help leaves them out."""
MOVED = {name: f"list {name}" if name in LISTS else name.replace("-", " ") for name in FORMER}
"""Their present names."""
_COMPLETION = "_PACELINE_COMPLETE"
"""Set by the shell when the tab key is pressed."""
_ENTRY_POINTS = "paceline.commands"
"""The entry points of packages that add commands: each is a table as `COMMANDS`."""


@functools.lru_cache(maxsize=1)
def added_commands() -> Table:
    """Return the commands of other packages; the lab's are among them."""
    added: Table = {}
    for point in importlib.metadata.entry_points(group=_ENTRY_POINTS):
        try:
            added |= point.load()
        except ImportError as error:
            click.echo(f"paceline: warning: no commands of '{point.value}': {printable(str(error))}", err=True)
    return added


def all_commands() -> Table:
    """Return all commands, except for former names."""
    return {**COMMANDS, **added_commands()}


class Lazy(Group):
    """A group that imports a subcommand when it is called."""

    def __init__(self, *args: Any, table: Callable[[], Table], former: Table | None = None, **others: Any) -> None:  # noqa: ANN401
        """`former`: commands that work, and that the help leaves out."""
        super().__init__(*args, **others)
        self._table, self._former = table, former or {}

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the commands that are installed."""
        return list(self._table())

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the command's module."""
        entry = self._table().get(cmd_name) or self._former.get(cmd_name)
        if entry is None:
            return None
        _, module, attribute, _ = entry
        command: click.Command = getattr(importlib.import_module(module), attribute)
        return command

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Return the commands and options that begin so, without importing any command."""
        from click.shell_completion import CompletionItem

        commands = [CompletionItem(name, help=text) for name, (_, _, _, text) in self._table().items()]
        return [
            *(item for item in commands if item.value.startswith(incomplete)),
            *click.Command.shell_complete(self, ctx, incomplete),
        ]

    def present_names(self, ctx: click.Context) -> dict[str, str]:
        """Return the present names of the commands, by all names."""
        return {**super().present_names(ctx), **{name: MOVED[name] for name in self._former}}

    def command_sections(self, ctx: click.Context) -> dict[str, list[tuple[str, str]]]:
        """Return the commands and their texts by section, without importing any."""
        sections: dict[str, list[tuple[str, str]]] = {}
        for name, (section, _, _, text) in self._table().items():
            sections.setdefault(section or "Commands", []).append((name, text))
        return sections


class Commands(Lazy):
    """The group of all commands, which turns errors into one line and an exit code."""

    def main(self, args: Sequence[str] | None = None, prog_name: str | None = None, **extra: Any) -> NoReturn:  # type: ignore[override]  # noqa: ANN401
        """Run, and exit with 0, 2 for invalid usage, 1 for a failed run, 130 after Ctrl-C."""
        extra.pop("standalone_mode", None)
        sys.exit(self._run(args, prog_name or "paceline", extra))

    def _run(self, args: Sequence[str] | None, prog_name: str, extra: dict[str, Any]) -> int:
        _open_missing_streams()
        import_path.share()
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(AttributeError, OSError):
                stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
        if _COMPLETION in os.environ:
            from paceline.cli.shells import register

            register()
        try:
            code = super().main(args, prog_name, standalone_mode=False, **extra)
            if sys.stdout is not None:
                sys.stdout.flush()
            return code if isinstance(code, int) else 0
        except click.ClickException as error:
            return _fail(*_of_click(error), error.exit_code)
        except InvalidArgumentError as error:
            return _fail(str(error), error.remedy_as("flag" if error.source is None else error.source.kind), 2)
        except JobError as error:
            report_error(error)
            return _fail(str(error), error.remedy_as("flag"), 1)
        except InternalError as error:
            return _fail(f"internal error: {error}", "report this bug, with the output of paceline doctor --env", 1)
        except click.Abort as error:
            if isinstance(error.__cause__, KeyboardInterrupt):  # Otherwise the command has said it.
                click.echo("paceline: interrupted; there is no result", err=True)
            leave_threads(130)
            return 130
        except OSError as error:
            if error.errno == errno.EPIPE:  # The reader has closed the pipe.
                sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: PTH123, SIM115
                return 1
            if error.errno == errno.ENOENT and working_directory_is_gone():
                return _fail(NO_WORKING_DIRECTORY, "cd to a folder that exists", 2)
            where = f"{error.filename}: " if error.filename else ""
            return _fail(f"{where}{error.strerror or error}", None, 2)


def _open_missing_streams() -> None:
    """Open /dev/null for streams that the shell closed (`2>&-`): the next file opened would get their descriptor."""
    for descriptor, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            stream = open(os.devnull, "w" if descriptor else "r", encoding="utf-8")  # noqa: PTH123, SIM115
            setattr(sys, name, stream)
            if stream.fileno() == descriptor:
                os.set_inheritable(descriptor, True)


def _fail(what: str, remedy: str | None, code: int) -> int:
    """Print the error, and return the code."""
    show_error(what, remedy)
    return code


def _of_click(error: click.ClickException) -> tuple[str, str | None]:
    """Return what is wrong, and what to type: by default the command that lists the options."""
    # A subclass knows the option; its message says what to do.
    if type(error) is click.NoSuchOption:
        error = meant(error)
    remedy: str | None = getattr(error, "remedy", None)
    if remedy is None and isinstance(error, click.UsageError) and error.ctx is not None:
        remedy = f"{called(error.ctx)} --help"
    return error.format_message(), remedy


def leave_threads(code: int) -> None:
    """Exit although simulations still run, which would keep the interpreter alive."""
    if threading.active_count() > 1:
        sys.stdout.flush()
        os._exit(code)


def help_alone(ctx: click.Context) -> None:
    """Print the help of a group if no command is named."""
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help(), err=True)
        ctx.exit(2)


def _group(name: str, table: Table, about: str) -> Lazy:
    own = click.pass_context(help_alone)
    return Lazy(
        name,
        table=lambda: table,
        help=about,
        callback=own,
        invoke_without_command=True,
        subcommand_metavar="COMMAND",
    )


list_ = _group(
    "list",
    LISTS,
    "List what is built in, show one by its name, or filter the list by parts of names.\n\n"
    "\b\npaceline list models llama-3-8b\npaceline list instances h100",
)
import_ = _group("import", IMPORTS, "Make a trace from what other tools recorded.")
export = _group("export", EXPORTS, "Write a trace for other tools.")


@click.group(
    cls=Commands,
    table=all_commands,
    former=FORMER,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    subcommand_metavar="COMMAND",
)
@click.version_option(__version__, prog_name="paceline", message="%(prog)s %(version)s")
@click.pass_context
def main(ctx: click.Context) -> None:
    """Forecast, run and diagnose distributed training."""
    if ctx.invoked_subcommand is None:
        click.echo(_START, nl=False, err=True)
        ctx.exit(2)


if __name__ == "__main__":
    main()
