"""The command `paceline explore`: a page on which sliders redraw a forecast."""

from __future__ import annotations

import secrets
from importlib.util import find_spec

import click

from paceline._internal.console import say
from paceline.cli import param_types as types
from paceline.errors import InvalidArgumentError


@click.command()
@click.argument("trace", default="resnet-50")
@types.option("explore", "cluster", filled=True)
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=8080,
    metavar="PORT",
    help="Port to listen on; 0: any free port.  [default: 8080]",
)
@click.option("--open", "opens", is_flag=True, help="Open the page in a browser.")
def explore(*, trace: str, cluster: str, port: int, opens: bool) -> None:
    """Show a page on which sliders for workers, bandwidth, latency and more redraw a forecast at once.

    It is reachable from this machine only, by its address, which contains a token. Ctrl-C stops it.

    \b
    paceline explore vgg-16 --cluster p3.16xlarge
    """
    if missing := [name for name in ("plotly", "starlette", "uvicorn") if find_spec(name) is None]:
        raise InvalidArgumentError(f"explore: needs {', '.join(missing)}: pip install 'paceline[explore]'")
    from paceline.catalog.library import built_in_trace
    from paceline.cli.main import leave_threads
    from paceline.explore.answers import preset
    from paceline.explore.server import HOST, listener, serve
    from paceline.explore.state import checked

    named = checked({"trace": built_in_trace(trace), "cluster": cluster})
    first = checked({"trace": named.trace, "cluster": named.cluster, **preset(named.cluster)})
    token = secrets.token_urlsafe(24)
    with listener(port) as bound:
        address = f"http://{HOST}:{bound.getsockname()[1]}/?token={token}"
        say([address])
        if opens:
            click.launch(address)
        serve(bound, token, first)
    leave_threads(130)  # A forecast may still be running, but nobody waits for it.
