"""What a user of an installation without extras may try, run by its Python in one process: tests/test_base_install.py.

Prints JSON: for each part, a list of what was tried and what came of it.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from pathlib import Path

import click
import paceline
import paceline.ray
import paceline_lab.emulate
from click.shell_completion import ShellComplete
from click.testing import CliRunner
from paceline.cli.main import all_commands, main

REFUSED = ([], ["--no-such-option"], ["no-such-file"], ["no-such-file", "--json"], ["resnet-18"])
FRONTS = ("torch", "tensorflow", "keras", "jax", "ray", "job", "common", "as_gloo", "accelerate_backend")
"""What scripts import."""


def paths(name: str) -> list[list[str]]:
    """Return a command and its subcommands, each as words."""
    result = main.get_command(click.Context(main), name)
    assert result is not None, name
    words = [[name]]
    if isinstance(result, click.Group):
        words += [[name, sub] for sub in result.list_commands(click.Context(result))]
    return words


def call(words: list[str]) -> dict[str, object]:
    done = CliRunner().invoke(main, words)
    error = done.exception
    raised = None if error is None or isinstance(error, SystemExit) else repr(error)
    return {"words": words, "code": done.exit_code, "output": done.output, "raised": raised}


def complete(words: list[str], incomplete: str) -> dict[str, object]:
    try:
        result = ShellComplete(main, {}, "paceline", "_PACELINE_COMPLETE").get_completions(words, incomplete)
    except Exception as error:
        return {"words": [*words, incomplete], "raised": repr(error), "items": []}
    return {"words": [*words, incomplete], "raised": None, "items": [item.value for item in result]}


def completions(path: list[str]) -> list[dict[str, object]]:
    """Of the options of a command, and of the value of each."""
    command: click.Command = main
    for word in path:
        assert isinstance(command, click.Group)
        result = command.get_command(click.Context(command), word)
        assert result is not None
        command = result
    options = [one for one in command.params if isinstance(one, click.Option) and not one.hidden]
    values = [complete([*path, one.opts[0]], "") for one in options if not one.is_flag]
    return [complete(path, "--"), *values]


def modules() -> list[str]:
    """Return every module that scripts may import, also by Horovod's names, which the fronts make on import."""
    root = Path(paceline.__path__[0])
    names = []
    for path in sorted(root.rglob("*.py")):
        parts = path.relative_to(root).with_suffix("").parts
        if parts[0] in FRONTS and "inject" not in parts and parts[-1] != "__main__":
            names.append(".".join(("paceline", *parts)).removesuffix(".__init__"))
    emulate = Path(paceline_lab.emulate.__path__[0])
    names += [f"paceline_lab.emulate.{path.stem}" for path in sorted(emulate.glob("[!_]*.py"))]
    return [*names, "paceline.torch.elastic", "paceline.torch.mpi_ops", "paceline.tensorflow.keras.callbacks"]


def attempt(words: str, run: object) -> dict[str, object]:
    """Return what a call raises; None if it returns."""
    try:
        run()
    except BaseException as error:
        return {
            "words": words,
            "raised": type(error).__name__,
            "message": "\n".join([str(error), *getattr(error, "__notes__", ())]),
        }
    return {"words": words, "raised": None, "message": ""}


def api() -> list[dict[str, object]]:
    """Every public name, and the calls that need an extra."""
    one = paceline.simulate("resnet-50", workers=2, strategy="ring")
    tried = [
        attempt(f"{module.__name__}.{name}", lambda module=module, name=name: getattr(module, name))
        for module in (paceline, paceline.job, paceline.ray)
        for name in dir(module)
    ]
    return [
        *tried,
        attempt("to_frame", lambda: paceline.to_frame([one])),
        attempt("plot", lambda: paceline.plot(one)),
        attempt("plan_tensorflow", lambda: paceline.plan_tensorflow("graph.pb")),
        attempt("RayExecutor", paceline.ray.RayExecutor(num_workers=1).start),
        attempt("emulate.cluster", paceline_lab.emulate.cluster(workers=2, bandwidth_bps=1e9).__enter__),
    ]


def survey() -> dict[str, object]:
    Path("graph.pb").write_bytes(b"\x0a\x00")
    Path("spec.toml").write_text("title = 'a'\n[[chapter]]\ntitle = 'b'\ntrace = 'resnet-18'\n", encoding="utf-8")
    every = [path for name in all_commands() for path in paths(name)]
    calls = [call([*path, *words]) for path in every for words in (["--help"], *REFUSED)]
    os.environ |= {"RANK": "0", "WORLD_SIZE": "2"}
    as_rank = [call(words) for words in (["probe", "--compression", "fp16"], ["validate", "--here"])]
    for name in ("RANK", "WORLD_SIZE"):
        del os.environ[name]
    return {
        "calls": calls,
        "as_rank": as_rank,
        "given": [call(words) for words in json.loads(sys.argv[1])],
        "completions": [complete([], "")] + [one for path in every for one in completions(path)],
        "imports": [attempt(name, lambda name=name: importlib.import_module(name)) for name in modules()],
        "api": api(),
    }


if __name__ == "__main__":
    print(json.dumps(survey()))
