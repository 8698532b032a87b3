"""The command `paceline explore`: a page on which sliders redraw a forecast."""

from __future__ import annotations

import secrets
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import click
from paceline._internal.console import remark, say
from paceline._internal.extras import need
from paceline._internal.nearest import alike
from paceline.catalog.strategies import unknown
from paceline.cli import param_types as types
from paceline.cli.command import Command
from paceline.cli.completion import complete
from paceline.cli.usage import UsageError
from paceline.errors import InvalidArgumentError
from paceline.settings.table import SETTINGS

if TYPE_CHECKING:
    from paceline_lab.explore.state import ModelState, State


@click.command(cls=Command)
@click.argument("trace", metavar="[WORKLOAD]", default="resnet-50", shell_complete=complete)
@types.option("explore", "cluster")
@types.option("explore", "gpu")
@click.option(
    "--port",
    type=types.whole(0, 65_535, "PORT"),
    default=8080,
    metavar="PORT",
    help="Port to listen on; 0: a free one.  [default: 8080]",
)
@click.option("--open", "opens", is_flag=True, help="Open the page in a browser.")
def explore(*, trace: str, cluster: str | None, gpu: str | None, port: int, opens: bool) -> None:
    """Serve a page with sliders that redraw a forecast.

    \b
    WORKLOAD is one of (default: resnet-50):
      vgg-16      a built-in trace (list: paceline list traces):
                  strategies over GPUs, bandwidth, latency and more
      llama-3-8b  a built-in model (list: paceline list models):
                  shardings over GPUs, batch, sequence length and network
      titan.toml  a trainer's file (docs/how-to/trainers-files.md)

    Only this machine can reach the page, by an address with a token. Ctrl-C stops it.

    \b
    paceline explore vgg-16 --cluster p3.16xlarge
    paceline explore llama-3-8b@h100 --open
    """
    need("paceline explore", "explore", "plotly", "starlette", "uvicorn")
    from paceline.cli.main import leave_threads

    from paceline_lab.explore.server import HOST, listener, serve

    first = _first(trace, cluster, gpu)
    token = secrets.token_urlsafe(24)
    with listener(port) as bound:
        address = f"http://{HOST}:{bound.getsockname()[1]}/?token={token}"
        say([address])
        if opens:
            click.launch(address)
        with suppress(KeyboardInterrupt):  # which ends it
            serve(bound, token, first)
    leave_threads(130)  # A forecast may still be running, but nobody waits for it.


def _first(named: str, cluster: str | None, gpu: str | None) -> State | ModelState:
    """Return the state of the page that a name asks for: of a model or of a recorded trace."""
    from paceline.catalog.builtin_names import built_in_trace, trace_names
    from paceline.catalog.gpus import find_hardware
    from paceline.catalog.models.config import built_in_configs, find_config
    from paceline.catalog.models.spec import split_word
    from paceline.forecast.trainer_file import check_there, find

    from paceline_lab.explore.answers import preset
    from paceline_lab.explore.state import ModelState, checked, checked_of_model

    if (file := find([named])) is not None:
        path, own_gpu = file
        if own_gpu and gpu not in (None, own_gpu):
            raise UsageError(f"--gpu: '{named[:80]}' says {own_gpu}, too", remedy="drop --gpu")
        return _of_file(path, gpu or own_gpu or None)
    check_there([named])
    word = named
    named, own = split_word(word)
    if gpu is not None and own.setdefault("gpu", gpu) != gpu:
        raise UsageError(f"--gpu: '{word[:80]}' says {own['gpu']}, too", remedy="drop --gpu")
    recorded, config = built_in_trace(named), find_config(named)
    if recorded not in trace_names() and config is None:
        known = [*trace_names(), *built_in_configs()]
        raise unknown("trace or model", named, alike(named, known), "paceline list traces, paceline list models")
    # Some models have been recorded, too.
    if config is not None and (own or recorded not in trace_names()):
        if cluster is not None:
            raise UsageError(
                "--cluster has no effect on a model, whose nodes are those of its --gpu", remedy="drop --cluster"
            )
        without = next((name for name in own if name not in ModelState.__dataclass_fields__), None)
        if without is not None:
            raise InvalidArgumentError(f"'{word[:80]}': the page has no {without}", remedy=named)
        if "gpu" in own:
            own["gpu"] = find_hardware(own["gpu"]).name
        return checked_of_model({"model": config.name, **own})
    if own:
        raise UsageError("--gpu has no effect on a recorded trace", remedy="drop --gpu (models: paceline list models)")
    of_trace = checked({"trace": recorded, "cluster": cluster or SETTINGS["cluster"].default_of("explore")})
    return checked({"trace": of_trace.trace, "cluster": of_trace.cluster, **preset(of_trace.cluster)})


def _of_file(path: Path, gpu: str | None) -> ModelState:
    """Return the state of the page that a trainer's file asks for; options that the page has not are named.

    Raises InvalidArgumentError for a file of no known trainer, and for a model that is not built in.
    """
    from paceline.catalog.gpus import find_hardware
    from paceline.catalog.models.config import find_config
    from paceline.interop import trainers

    from paceline_lab.explore.state import ModelState, checked_of_model

    reading = trainers.read(path, {})
    if reading is None:
        raise trainers.unknown(path)
    config = reading.config
    if config is None or find_config(config.name) is None:
        raise InvalidArgumentError(
            f"{path!s:.200}: the page has built-in models, and the file names none",
            remedy=f"paceline simulate {path!s:.80} (built-in models: paceline list models)",
        )
    options = {{"workers": "gpus"}.get(name, name): value for name, value in reading.options.items()}
    known = {name: value for name, value in options.items() if name in ModelState.__dataclass_fields__}
    if left := sorted(set(options) - set(known)):
        remark(f"the page has no {', '.join(left)}, which {path.name} gives; paceline simulate has")
    if "sharding" in known:
        known["sharding"] = str(known["sharding"]).partition(":")[0]
    return checked_of_model(known | {"model": config.name, "gpu": find_hardware(gpu or "h100").name})
