"""The command `paceline report`, which turns a specification into a page."""

from __future__ import annotations

from pathlib import Path

import click
from paceline._internal.console import remark, say
from paceline._internal.files import check_writable, make_folder
from paceline.cli.command import Command
from paceline.cli.completion import complete
from paceline.errors import InvalidArgumentError

_PATH = click.Path(path_type=Path)


@click.command(cls=Command)
@click.argument("spec", type=_PATH, metavar="SPEC.toml|WORKLOAD", shell_complete=complete)
@click.option("-o", "--output", type=_PATH, required=True, metavar="FILE.html", help="Page to write.")
@click.option("--png", type=_PATH, metavar="DIR", help="Also write each chart as PNG into this folder.")
def report(*, spec: Path, output: Path, png: Path | None) -> None:
    """Write forecasts as one self-contained HTML page.

    The page has scaling curves, a ranking of strategies, the critical path and a timeline. SPEC.toml has chapters,
    with options of paceline simulate as fields (docs/how-to/report.md). A WORKLOAD, such as mine.json, is forecast on
    2 to 64 GPUs.

    \b
    paceline report examples/report.toml -o report.html
    paceline report mine.json -o report.html
    """
    from paceline._internal.console import Bar
    from paceline.forecast.output.plotting import need_matplotlib
    from paceline.forecast.trainer_file import is_candidate

    from paceline_lab.report.spec import of_trace, read

    need_matplotlib("paceline report")
    if output.suffix.lower() not in (".html", ".htm"):
        raise InvalidArgumentError(f"--output {output}: is no page", remedy=f"--output {output.with_suffix('.html')}")
    check_writable("--output", output)
    if png is not None:
        make_folder("--png", png)
    suffix = spec.suffix.lower()
    is_trace = suffix == ".json" or (suffix != ".toml" and (not spec.exists() or is_candidate(spec)))
    workload = str(spec) if is_trace else None
    try:
        specification = of_trace(str(spec)) if is_trace else read(spec)
    except InvalidArgumentError as error:
        raise _as_keys(error, workload) from None
    for chapter in specification.chapters:
        if chapter.file is not None:
            for note in (*chapter.file.slips, chapter.file.left_out):
                if note:
                    remark(note)
    from paceline_lab.report.chapters import simulated
    from paceline_lab.report.document import write

    with Bar("simulating") as bar:
        try:
            chapters = simulated(specification, bar)
        except InvalidArgumentError as error:
            raise _as_keys(error.within(str(spec)), workload) from None
    say([f"wrote {path}" for path in write(specification, chapters, output, png)])


def _as_keys(error: InvalidArgumentError, workload: str | None) -> InvalidArgumentError:
    """Return the error with a remedy whose settings are fields of a chapter: the command has no options for them.

    `workload`: what the report is of without a specification; None if there is one.
    """
    remedy = error.remedy_as("key")
    if remedy is None or remedy == error.remedy_as("flag"):
        return error
    if workload is not None:
        remedy = f'{remedy} (in a SPEC.toml, whose [[chapter]] has trace = "{workload:.200}")'
    return InvalidArgumentError(str(error), remedy=remedy)
