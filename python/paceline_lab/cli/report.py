"""The command `paceline report`, which turns a specification into a page."""

from __future__ import annotations

from pathlib import Path

import click
from paceline._internal.console import say
from paceline._internal.files import check_writable, make_folder
from paceline.cli.completion import complete
from paceline.errors import InvalidArgumentError

_PATH = click.Path(path_type=Path)


@click.command()
@click.argument("spec", type=_PATH, metavar="SPEC.toml|TRACE", shell_complete=complete)
@click.option("-o", "--output", type=_PATH, required=True, metavar="FILE.html", help="The page.")
@click.option("--png", type=_PATH, metavar="DIR", help="Also write every chart as PNG to this folder.")
def report(*, spec: Path, output: Path, png: Path | None) -> None:
    """Run the forecasts of SPEC, and write one HTML page that needs no network.

    The page has scaling curves, a ranking of strategies, what iterations wait for, and a timeline. SPEC is TOML:
    chapters whose fields are the options of `paceline simulate` (docs/how-to/report.md). A trace or a model's name in
    its place is forecast on 2 to 64 workers.

    \b
    paceline report examples/report.toml -o report.html
    paceline report mine.json -o report.html
    """
    from paceline._internal.console import Bar
    from paceline.forecast.output.plotting import need_matplotlib

    from paceline_lab.report.spec import of_trace, read

    need_matplotlib("paceline report")
    if output.suffix.lower() not in (".html", ".htm"):
        raise InvalidArgumentError(f"--output {output}: name a file that ends with .html")
    check_writable("--output", output)
    if png is not None:
        make_folder("--png", png)
    is_trace = spec.suffix.lower() == ".json" or (spec.suffix.lower() != ".toml" and not spec.exists())
    specification = of_trace(str(spec)) if is_trace else read(spec)
    from paceline_lab.report.chapters import simulated
    from paceline_lab.report.document import write

    with Bar("simulating") as bar:
        try:
            chapters = simulated(specification, bar)
        except InvalidArgumentError as error:
            raise InvalidArgumentError(f"{spec}: {error}") from None
    say([f"wrote {path}" for path in write(specification, chapters, output, png)])
