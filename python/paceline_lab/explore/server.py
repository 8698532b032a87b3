"""The page and its one endpoint, on loopback, for whoever has the token.

Every request needs the token, and the host name in it must be this machine's own, so that a page from elsewhere can
neither read nor request anything here (DNS rebinding). The page may load nothing from elsewhere.
"""

from __future__ import annotations

import html
import json
import secrets
import socket
from pathlib import Path
from typing import Any

import anyio.to_thread
import uvicorn
from paceline.catalog.strategies import all_strategies
from paceline.errors import InvalidArgumentError
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from paceline_lab.explore import model_answers
from paceline_lab.explore.answers import answer, preset
from paceline_lab.explore.state import (
    LIMITS,
    LIMITS_OF_MODELS,
    ModelState,
    State,
    checked,
    choices,
    parse,
    parse_of_model,
)

HOST = "127.0.0.1"
_STATIC = Path(__file__).parent / "static"
_MOST_BYTES = 16 << 10
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_HEADERS = {
    "Content-Security-Policy": _POLICY,
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-store",
}


class _WithToken:
    """Admits only requests with the token, in the address or in a header."""

    def __init__(self, app: ASGIApp, token: str) -> None:
        self.app, self.token = app, token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            request = Request(scope)
            given = request.headers.get("x-paceline-token") or request.query_params.get("token") or ""
            if not secrets.compare_digest(given.encode(), self.token.encode()):
                text = "The address lacks its token: take the one that `paceline explore` printed.\n"
                await PlainTextResponse(text, 403)(scope, receive, send)
                return
        await self.app(scope, receive, send)


def _answer(body: bytes) -> dict[str, Any]:
    return answer(parse(body))


def _answer_of_model(body: bytes) -> dict[str, Any]:
    return model_answers.answer(parse_of_model(body))


def application(token: str, first: State | ModelState) -> Starlette:
    """Return the application: the page of recorded models or of models on GPUs, its files, and the endpoint."""
    is_recorded = isinstance(first, State)
    script = "traces.js" if is_recorded else "models.js"
    answered = _answer if is_recorded else _answer_of_model

    async def page(_request: Request) -> Response:
        text = (_STATIC / "index.html").read_text(encoding="utf-8")
        data = json.dumps(
            {
                "first": vars(first),
                "limits": LIMITS if is_recorded else LIMITS_OF_MODELS,
                "choices": choices(),
                "strategies": [strategy.name for strategy in all_strategies()],
            }
        )
        text = text.replace("{{token}}", html.escape(token)).replace("{{told}}", html.escape(data))
        return Response(text.replace("{{script}}", script), media_type="text/html", headers=_HEADERS)

    async def file(request: Request) -> Response:
        name = request.path_params["name"]
        if name == "plotly.js":
            from plotly.offline import get_plotlyjs

            return Response(
                await anyio.to_thread.run_sync(get_plotlyjs), media_type="text/javascript", headers=_HEADERS
            )
        kinds = {"app.js": "text/javascript", script: "text/javascript", "app.css": "text/css"}
        if name not in kinds:
            return PlainTextResponse("there is no such file\n", 404)
        return Response((_STATIC / name).read_bytes(), media_type=kinds[name], headers=_HEADERS)

    async def forecast(request: Request) -> Response:
        body = b""
        async for part in request.stream():
            body += part
            if len(body) > _MOST_BYTES:
                return JSONResponse({"error": f"more than {_MOST_BYTES} bytes"}, 413, _HEADERS)
        try:
            response = await anyio.to_thread.run_sync(answered, body)
        except InvalidArgumentError as error:
            return JSONResponse({"error": str(error), "remedy": error.remedy}, 400, _HEADERS)
        return JSONResponse(response, headers=_HEADERS)

    async def of_cluster(request: Request) -> Response:
        try:
            state = checked({"cluster": request.query_params.get("name", "")})
        except InvalidArgumentError as error:
            return JSONResponse({"error": str(error), "remedy": error.remedy}, 400, _HEADERS)
        return JSONResponse(preset(state.cluster), headers=_HEADERS)

    return Starlette(
        routes=[
            Route("/", page),
            Route("/static/{name}", file),
            Route("/cluster", of_cluster),
            Route("/forecast", forecast, methods=["POST"]),
        ],
        middleware=[
            Middleware(TrustedHostMiddleware, allowed_hosts=[HOST, "localhost"], www_redirect=False),
            Middleware(_WithToken, token=token),
        ],
    )


def listener(port: int) -> socket.socket:
    """Return a socket on loopback. Raises InvalidArgumentError if the port is taken or not permitted."""
    made = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        made.bind((HOST, port))
        made.listen()  # who asks at once waits, and is not refused
    except OSError as error:
        made.close()
        raise InvalidArgumentError(
            f"--port {port}: {(error.strerror or str(error)).lower()}", remedy="--port 0 (any)"
        ) from None
    return made


def serve(bound: socket.socket, token: str, first: State | ModelState) -> None:
    """Answer until Ctrl-C."""
    config = uvicorn.Config(
        application(token, first),
        log_level="critical",
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=1,
    )
    uvicorn.Server(config).run(sockets=[bound])
