"""The command `paceline bench`, which compares the images/s of training engines."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from paceline._internal.console import put, say, width
from paceline._internal.extras import need
from paceline._internal.files import check_writable, replaced
from paceline.cli import param_types as types
from paceline.cli.command import Command
from paceline.cli.completion import completed
from paceline.cli.usage import UsageError
from paceline.errors import InvalidArgumentError
from paceline.launch.hosts import MOST_RANKS
from paceline.settings import kinds

if TYPE_CHECKING:
    from paceline.interop.logs import Read

    from paceline_lab.bench.engines import Engine
    from paceline_lab.bench.plan import Plan
    from paceline_lab.bench.result import Result

_COUNT = types.COUNT
_COUNT_OR_NONE = types.COUNT_OR_NONE
_PATH = click.Path(path_type=Path)
_RANKS = types.several(kinds.whole(1, MOST_RANKS))
_GPUS = types.one_each(kinds.whole(1, MOST_RANKS))
_XLA = types.several(kinds.choice(("off", "on")))
_SCALING = types.of_kind(kinds.choice(("weak", "strong")))
_CANNOT = 77


def _environments() -> Iterable[str]:
    from paceline_lab.bench.environments import REQUIREMENTS

    return REQUIREMENTS


def _engines() -> Iterable[str]:
    from paceline_lab.bench.engines import ALL, NAMES

    return [ALL, *NAMES]


_SECTIONS = {
    "Basic options": ("engines", "model", "ranks", "batch_size", "num_batches", "as_json", "output", "plot"),
    "Logs of other benchmarks": ("logs", "gpus"),
    "Model and data": ("image_size", "data_dir", "num_workers", "device", "lr", "seed"),
    "Measurement": ("rounds", "num_warmup_batches", "scaling", "limit", "display_every"),
    "Engine paceline": ("strategy", "transport", "coordinator", "servers", "bucket_size"),
    "Engines of TensorFlow": ("xla",),
    "Engine ray-ps": ("inside",),
    "Forecast beside it": ("cluster", "bandwidth"),
    "Installation": ("install",),
}


@click.command(cls=Command, sections=_SECTIONS)
@types.option("bench", "model")
@click.option("--batch-size", type=_COUNT, help="Images per rank and step.  [default: 8; ddp-nccl: 64]")
@click.option("--num-batches", type=_COUNT, help="Steps to measure, over all rounds.  [default: 30]")
@click.option("--num-warmup-batches", type=_COUNT_OR_NONE, help="Warm-up steps per round.  [default: 3]")
@click.option(
    "--engine",
    "engines",
    type=types.WORDS,
    shell_complete=completed(_engines),
    help="Engines: paceline, ddp-gloo, ddp-nccl, horovod, …, all.  [default: paceline]",
)
@click.option("-np", "-n", "--np", "ranks", type=_RANKS, help="Ranks to start.  [default: all of the job]")
@click.option("--rounds", type=_COUNT, help="Rounds, in which engines take turns.  [default: 3; one engine: 1]")
@types.option("bench", "device")
@click.option("--scaling", type=_SCALING, help="weak (--batch-size per rank) or strong (global).  [default: weak]")
@types.options("bench", "strategy", "transport", "coordinator", "servers", "inside")
@types.option("bench", "bucket_size")
@click.option(
    "--xla",
    type=_XLA,
    metavar="WORD,…",
    help="XLA in TensorFlow (auto-clustering): off, on.  [default: off]",
)
@click.option("--data-dir", type=_PATH, metavar="DIR", help="Images, one subfolder per class.  [default: synthetic]")
@click.option("--num-workers", type=_COUNT_OR_NONE, help="Loader processes per rank, for --data-dir.  [default: 2]")
@types.options("bench", "image_size", "seed")
@click.option("--lr", type=types.POSITIVE, help="Learning rate of SGD, momentum 0.9.  [default: 0.001]")
@click.option("--display-every", type=_COUNT, help="Steps between lines, with one engine.  [default: 10]")
@click.option(
    "--limit", type=types.POSITIVE, metavar="SECONDS", help="Time limit per run of an engine.  [default: 900]"
)
@types.options("bench", "cluster", "bandwidth")
@click.option(
    "--read", "logs", type=_PATH, multiple=True, help="Log of tf_cnn_benchmarks, nccl-tests or OSU; repeat for more."
)
@click.option("--gpus", type=_GPUS, help="GPUs of each log, if neither it nor its name tells.")
@click.option("--plot", type=_PATH, metavar="FILE", help="Write a plot: .png, .svg or .pdf.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--output", "-o", type=_PATH, metavar="FILE", help="Also write the JSON to a file: bench.json.")
@click.option(
    "--install",
    metavar="NAME",
    shell_complete=completed(_environments),
    help="Create an environment, and exit: tensorflow, openmpi, mpich, oneccl, horovod, ….",
)
def bench(
    *,
    logs: tuple[Path, ...],
    plot: Path | None,
    as_json: bool,
    output: Path | None,
    install: str | None,
    gpus: list[int] | None,
    **options: Any,  # noqa: ANN401
) -> int:
    """Compare the images/s of Paceline, DDP, Horovod, TensorFlow and Ray.

    All engines train the same model on the same batches and seed. Conventions are those of tf_cnn_benchmarks. -np
    starts ranks on this machine. Started once per host of a job, it runs its ranks there. Options marked * take lists.

    \b
    paceline bench --model resnet18 --batch-size 8 --engine all -np 2
    paceline bench --engine paceline,ddp-gloo -np 1,2,4 --plot scaling.png
    paceline emulate run --workers 4 --bandwidth 1Gbps -- \\
      paceline bench --model resnet18 --engine paceline,ddp-gloo
    paceline bench --read nccl_g4.txt --read nccl_g8.txt --plot fit.png
    """
    if install is not None:
        others = {
            **options,
            "read": logs or None,
            "gpus": gpus,
            "plot": plot,
            "output": output,
            "json": as_json or None,
        }
        _install(install, given=[name for name, value in others.items() if value is not None])
        return 0
    for option, path in (("--plot", plot), ("--output", output)):
        if path is not None:
            check_writable(option, path)
            _apart(option, path, [("--read", log) for log in logs] + [("--plot", plot)] * (option == "--output"))
    if plot is not None:
        from paceline_lab.bench.plot import check

        check(plot)
    from paceline.interop.logs import read_log

    read = [one for path in logs for one in read_log(path)]
    _number(read, gpus)
    if read and all(value is None for value in options.values()):
        return _only_logs(read, plot=plot, as_json=as_json, output=output)
    need("paceline bench", "bench", "torch", "torchvision", "numpy")
    from paceline_lab.bench import session

    with session.opened(options, quiet=as_json) as opened:
        opened.run()
        if opened.group.host:
            return 0
        plan, result = opened.plan, opened.result
        _print(plan, result, read, live=opened.live, as_json=as_json, output=output)
        if plot is not None and result.rows:
            from paceline_lab.bench.plot import draw

            draw(plan, result, read, plot)
        if result.ended is not None:
            return result.ended
        failed = any(one.failed for one in result.skipped)
        return 1 if failed else 0 if result.rows else _CANNOT


def _number(read: list[Read], gpus: list[int] | None) -> None:
    from paceline_lab.bench.log_fits import number, training

    if gpus is not None and not training(read):
        raise UsageError("--gpus needs logs of training", remedy="--read tf_cnn.log, or drop --gpus")
    number(read, gpus)


def _apart(option: str, path: Path, others: list[tuple[str, Path | None]]) -> None:
    for name, other in others:
        if other is not None and path.resolve() == other.resolve() and (path.is_file() or not path.exists()):
            raise InvalidArgumentError(
                f"{option} {path}: would overwrite {name} {other}", remedy=f"another file for {option}"
            )


def _install(name: str, given: list[str]) -> None:
    from paceline_lab.bench.environments import install

    if given:
        raise UsageError(f"--install {name} only creates an environment", remedy=f"paceline bench --install {name}")
    install(name, lambda text: click.echo(f"paceline: {text}", err=True))


def _only_logs(read: list[Read], *, plot: Path | None, as_json: bool, output: Path | None) -> int:
    import json

    from paceline.interop.logs.show import shown

    from paceline_lab.bench import log_fits

    fitted = log_fits.fits(read)
    if plot is not None and not fitted:
        raise UsageError(
            "--plot needs logs of training with two numbers of GPUs, or a model",
            remedy="--read g1.txt --read g4.txt, or --model resnet50",
        )
    content = {"read": [one.to_dict() for one in read], "regressions": [one.to_dict() for one in fitted]}
    text = json.dumps(content, indent=1, allow_nan=False)
    _write(text, output)
    if as_json:
        put(text)
    else:
        say([*shown(read), *([""] if fitted else []), *log_fits.shown(fitted)])
    if plot is not None:
        from paceline_lab.bench.plot import draw_logs

        draw_logs(fitted, plot)
    return 0


def _print(
    plan: Plan, result: Result, read: list[Read], *, live: Engine | None, as_json: bool, output: Path | None
) -> None:
    from paceline_lab.bench import report

    text = report.to_json(plan, result, read)
    try:
        _write(text, output)
    finally:  # Neither a full disk may suppress the table, nor a closed pipe the file.
        _say(plan, result, read, live=live, text=text if as_json else None)


def _say(plan: Plan, result: Result, read: list[Read], *, live: Engine | None, text: str | None) -> None:
    from paceline_lab.bench import report
    from paceline_lab.bench.classic import closing

    if text is not None:
        put(text)
        return
    say(["", *report.table(plan, result, read, width()), ""])
    if live is None:
        say(report.totals(result))
    elif result.rows:
        say(closing(result.rows[0]))


def _write(text: str, output: Path | None) -> None:
    if output is not None:
        with replaced(output) as new:
            new.write_text(text + "\n", encoding="utf-8")
