"""The command `paceline record`: a trace from the steps of a torchvision model, or of the user's own script."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from itertools import takewhile
from pathlib import Path
from typing import Any

import click

from paceline._internal import block, units
from paceline._internal.block import Fact
from paceline._internal.console import Bar, put, say
from paceline._internal.extras import need
from paceline._internal.files import NO_SUCH_FILE, check_distinct, check_writable, list_of
from paceline._internal.nearest import nearest
from paceline._internal.parameters import not_trained
from paceline.cli import param_types as types
from paceline.cli.command import Command
from paceline.cli.usage import CommandError, UsageError, show_error
from paceline.errors import Source, naming
from paceline.launch import injection
from paceline.settings.table import SETTINGS

_UNSEEN = 0.2
"""If a larger share of a step belongs to no part, it is reported."""
_DRIFT = 0.1
"""If recorded steps differ from others by more than this share, it is reported."""


_ONE_RANK = {
    "RANK": "0",
    "LOCAL_RANK": "0",
    "WORLD_SIZE": "1",
    "LOCAL_WORLD_SIZE": "1",
    "MASTER_ADDR": "127.0.0.1",
    "MASTER_PORT": "29500",
}
"""Variables that a launcher would set, for scripts that are recorded without the device; torchrun sets its own."""


class _CannotDoHere(CommandError):
    """This machine lacks something."""

    exit_code = 77


_SECTIONS = {
    "Basic options": ("output", "batch", "steps", "warmup", "name", "as_json"),
    "Your own script": ("gpu", "power_limit", "dtype", "stop_when_recorded"),
    "A torchvision model": ("model", "device", "threads", "image_size"),
}


@click.command(cls=Command, sections=_SECTIONS, context_settings={"allow_interspersed_args": False})
@types.option("record", "model")
@click.option("-o", "--output", required=True, type=click.Path(path_type=Path), help="Trace to write: mine.json.")
@types.options(
    *("record", "batch", "warmup", "steps", "name", "device", "threads", "image_size", "gpu", "dtype"),
    *("power_limit", "stop_when_recorded"),
)
@click.option("--json", "as_json", is_flag=True, help="Print the summary as JSON.")
@click.argument("script", nargs=-1, type=click.UNPROCESSED, metavar="[-- python train.py …]")
def record(*, output: Path, as_json: bool, script: tuple[str, ...], **options: Any) -> None:  # noqa: ANN401
    """Record a trace of training steps, measured here or estimated for a GPU.

    Records your own script, which needs no change, or a torchvision model. A step ends with that of the optimizer of
    the largest module.

    \b
    paceline record -o mine.json -- python train.py --epochs 1
    paceline record --gpu h100 --dtype bf16 -o mine.json -- python train.py
    paceline record --model resnet50 --batch 32 -o resnet50.json

    With --gpu, nothing is measured, and no GPU is needed. The script runs here, without data or memory for its
    weights, until the steps are recorded. Its operators are counted with the shapes of their tensors, and a model of
    the GPU's kernels turns them into times.
    """
    if (options["model"] is None) == (not script):
        raise UsageError(
            "give either --model NAME or a script",
            remedy=f"paceline record -o {output} -- python train.py",
        )
    check_writable("--output", output)
    check_distinct([("--output", output)], script)
    gpu, stop = options.pop("gpu"), bool(options.pop("stop_when_recorded"))
    defaults = {"warmup": 3, "steps": 10} if gpu is None else {"warmup": 2, "steps": 1}
    options |= {name: value for name, value in defaults.items() if options[name] is None}
    for name in ("dtype", "power_limit"):
        if gpu is None and options[name] is not None:
            flag = SETTINGS[name].flag
            raise UsageError(f"{flag} needs --gpu", remedy=f"--gpu h100, or drop {flag}")
    if gpu is not None:
        if not script:
            raise UsageError("--gpu needs a script", remedy="-- python train.py, or drop --gpu")
        if stop:
            raise UsageError("--gpu always ends the script", remedy="drop --stop-when-recorded")
        gpu = _known_gpu(gpu, options["power_limit"], options["dtype"])
    if script:
        for name in ("device", "threads", "image_size"):
            if options.pop(name) is not None:
                flag = SETTINGS[name].flag
                raise UsageError(f"{flag} needs --model: a script sets it itself", remedy=f"drop {flag}")
        options.pop("model")
        _record_script(_started(script), output, gpu=gpu, stop=stop or gpu is not None, as_json=as_json, **options)
        return
    if stop:
        raise UsageError("--stop-when-recorded needs a script", remedy="drop --stop-when-recorded")
    del options["dtype"], options["power_limit"]
    options |= {"batch": options["batch"] or 32, "device": options["device"] or "cpu"}
    summary = _record_model(output=output, **options)
    _print_summary(summary, output, as_json=as_json, to_stderr=False)


def _known_gpu(gpu: str, power_limit: float | None, dtype: str | None) -> str:
    """Return the GPU's name, or the absolute path of its file. Raises InvalidArgumentError."""
    from paceline.catalog.gpus import find_hardware
    from paceline.operators.power import limited

    with naming({name: Source("flag", SETTINGS[name].flag) for name in ("gpu", "power_limit", "dtype")}):
        hardware = find_hardware(gpu)
        if power_limit is not None:
            limited(hardware, power_limit)
        if dtype is not None:
            hardware.peak(dtype)
    return str(Path(gpu).absolute()) if gpu.endswith(".json") else hardware.name


def _record_model(
    *,
    model: str,
    output: Path,
    warmup: int,
    steps: int,
    name: str | None,
    batch: int,
    device: str,
    threads: int | None,
    image_size: int | None,
) -> dict[str, Any]:
    need("recording", "torch", "torch", "torchvision")
    import torch

    from paceline.torch import RecordingError
    from paceline.torch.recorder import torchvision

    try:
        model = torchvision.resolve(model)
    except torchvision.UnknownModelError as error:
        raise UsageError(f"--model: {error}", remedy=error.remedy) from error
    if device == "cuda" and not torch.cuda.is_available():
        raise _CannotDoHere("this machine has no CUDA device that torch can use", remedy="--device cpu")
    if threads is not None:
        torch.set_num_threads(threads)
    try:
        with Bar(f"recording {model}") as bar:
            recorder = torchvision.record_model(
                model,
                batch=batch,
                warmup=warmup,
                steps=steps,
                device=device,
                image_size=image_size,
                progress=bar,
            )
        if name is not None:
            recorder.name = name
        recorder.save(output)
    except (RecordingError, RuntimeError, ValueError, OSError) as error:
        raise CommandError(
            f"recording {model} failed: {error}", remedy="paceline record -o T.json -- python train.py"
        ) from error
    return recorder.summary.as_dict()


def _record_script(
    script: tuple[str, ...],
    output: Path,
    *,
    gpu: str | None,
    as_json: bool,
    steps: int,
    **options: Any,  # noqa: ANN401
) -> None:
    with tempfile.TemporaryDirectory(prefix="paceline-record-") as exchange:
        recording = injection.Recording(
            output=str(output.absolute()), exchange=exchange, gpu=gpu, steps=steps, **options
        )
        environment = os.environ if gpu is None else {**_ONE_RANK, **os.environ}
        code = _run(script, injection.injected(environment, recording))
        result_path = Path(exchange) / injection.RESULT
        result = json.loads(result_path.read_text(encoding="utf-8")) if result_path.is_file() else None
    problem, remedy = injection.problem(result)
    if result is None and code:
        how = f"was ended by signal {code - 128}" if code > 128 else f"failed with exit code {code}"
        problem = f"the script {how} before its first optimizer step"
        if gpu is None and "RANK" not in os.environ:
            alone = shlex.join(_without_launcher(script))
            remedy = f"paceline run -np 1 --record {output} -- {alone} (if it uses torch.distributed)"
    if problem is not None:
        show_error(f"no trace: {problem}", remedy)
        sys.exit(code or 1)
    assert result is not None
    if not result["finished"]:
        recorded = f"{result['recorded']} of {steps} requested steps"
        click.echo(f"paceline: warning: the script ended early: the trace covers {recorded}", err=True)
    _print_summary(result["summary"], output, as_json=as_json, to_stderr=not as_json)
    sys.exit(code)


def _started(script: tuple[str, ...]) -> tuple[str, ...]:
    """Return the command that starts a script: a file of Python needs `python`. Raises UsageError if there is none."""
    file = _file_of(script)
    if file is not None and not Path(file).exists():
        path = Path(file)
        near = nearest(path.name, [one.name for one in path.parent.glob("*.py")])
        words = [str(path.with_name(near)) if near and word == file else word for word in script]
        raise UsageError(f"{file:.200}: {NO_SUCH_FILE}", remedy=f"-- {shlex.join(words)}" if near else list_of(path))
    is_alone = file == script[0] and shutil.which(file) is None
    return ("python", *script) if is_alone else script


def _file_of(script: tuple[str, ...]) -> str | None:
    """Return the file of Python that a command runs; None if it is of another kind."""
    program = Path(script[0]).name
    if program.endswith(".py"):
        return script[0]
    if not program.startswith(("python", "torchrun")):
        return None
    options = takewhile(lambda word: word not in ("-c", "-m", "--module"), script[1:])
    return next((word for word in options if word.endswith(".py")), None)


def _without_launcher(command: tuple[str, ...]) -> tuple[str, ...]:
    """Return the command of a rank in a command of torchrun; other commands as they are."""
    launched = Path(command[0]).name == "torchrun" or "torch.distributed.run" in command[1:3]
    if not launched:
        return command
    for index, word in enumerate(command):
        if word in ("-m", "--module") and command[index + 1 : index + 2] != ("torch.distributed.run",):
            return ("python", "-m", *command[index + 1 :])
        if word.endswith(".py"):
            return ("python", *command[index:])
    return ("python", "train.py")


def _run(command: tuple[str, ...], environment: dict[str, str]) -> int:
    """Run the script to its end and return its exit code, or 128 + n if signal n ended it, as shells do."""
    try:
        process = subprocess.Popen(command, env=environment)
    except FileNotFoundError as error:
        raise UsageError(f"there is no command {command[0]!r}", remedy="-- python train.py") from error
    except PermissionError as error:
        raise UsageError(f"{command[0]} cannot be executed", remedy=f"-- python {shlex.join(command)}") from error
    # A signal that ends this process (from a batch system or `timeout`) is meant for the script, which would otherwise
    # keep running.
    before = signal.signal(signal.SIGTERM, lambda number, _frame: process.send_signal(number))
    try:
        while True:
            try:
                code = process.wait()
            except KeyboardInterrupt:  # The terminal sent it to the script as well, which decides.
                continue
            return code if code >= 0 else 128 - code
    finally:
        signal.signal(signal.SIGTERM, before)


def _print_summary(summary: dict[str, Any], output: Path, *, as_json: bool, to_stderr: bool) -> None:
    if as_json:
        put(json.dumps(summary, indent=1))
        return
    words = " ".join([shlex.quote(str(output)), *summary["forecast_options"].split()])
    untrained = not_trained(summary["unused"], summary["frozen"], summary["not_trained_bytes"])
    notes = [*summary["notes"], *([_COUNTED] if _is_estimate(summary) else []), *_drift(summary), *_missing(summary)]
    say(
        [
            *block.headline(_headline(summary)),
            "",
            *block.block(_facts(summary)),
            *block.notes([*untrained, *notes]),
            "",
            f"Wrote {output}",
            *block.suggestion(f"paceline simulate {words}"),
        ],
        err=to_stderr,
    )


_COUNTED = "No GPU was used: operators, FLOPs and bytes are counted, all times are estimates"


def _is_estimate(summary: dict[str, Any]) -> bool:
    return summary.get("simulated") is not None


def _headline(summary: dict[str, Any]) -> str:
    what = f"{summary['name']} ({summary['parameters']:,} parameters, batch {summary['batch']})"
    if _is_estimate(summary):
        return f"Estimated {what} for {summary['device']}"
    return f"Recorded {what} on {summary['device']}"


def _drift(summary: dict[str, Any]) -> list[str]:
    """Return a warning if the recorded steps were not as fast as the others; hooks alone take a percent or two."""
    cost = summary["overhead"]
    change = 0.0 if cost is None else summary["overhead_ratio"] - 1
    if cost is None or abs(change) <= max(_DRIFT, 2 * cost["noise"]):
        return []
    shorter = "shorter" if change < 0 else "longer"
    return [
        f"Recorded steps were {abs(change):.0%} {shorter} than the others, more than recording explains. "
        "The machine's speed changed: record again"
    ]


def _missing(summary: dict[str, Any]) -> list[str]:
    """Return a warning if the parts add up to less than the step: a forecast knows only the parts."""
    parts = summary["forward_s"] + summary["backward_s"] + summary["optimizer_s"]
    step = summary["step_s"] - (summary["input_s"] or 0.0)
    noise = summary["overhead"]["noise"] if summary["overhead"] else 0.0
    if step <= 0 or parts >= (1 - max(_UNSEEN, noise)) * step:
        return []
    return [
        f"Forward, backward and optimizer add up to {parts / step:.0%} of a step without its input. "
        "A forecast knows them alone and is that much too fast. If the machine was busy, record again"
    ]


def _facts(summary: dict[str, Any]) -> list[Fact]:
    """Return the parts of a step, with their times below each other, and what else was recorded."""
    cost, simulated = summary["overhead"], summary.get("simulated")
    seen = summary["input_s"] is not None
    steps = f"medians of {units.count(summary['steps'], 'step')} after {summary['warmup']} warm-up"
    rate = f"{units.short(summary['samples_per_s'], 4)} samples/s{', without recording' if cost else ''}"
    times = [
        ("Forward", _ms(summary["forward_s"]), f"loss {_ms(summary['loss_s'])}"),
        ("Backward", _ms(summary["backward_s"]), ""),
        ("Optimizer", _ms(summary["optimizer_s"]), ""),
        ("Input", _ms(summary["input_s"]) if seen else "", _input(summary)),
        ("Full step", _ms(summary["step_s"]), rate),
    ]
    longest = max(len(time) for _, time, _ in times)
    facts = [Fact(label, (f"{time:>{longest}}", note)) for label, time, note in times]
    facts.append(
        Fact("Gradients", f"{summary['gradient_bytes']:,} bytes in {units.count(summary['gradients'], 'tensor')}")
    )
    if simulated is not None:
        return [
            *facts,
            *_operator_facts(simulated),
            Fact("Steps", f"{summary['steps']} after {summary['warmup']} warm-up"),
        ]
    overhead = f"not measured ({summary['why_no_overhead']})"
    if cost is not None:
        overhead = f"{(summary['overhead_ratio'] - 1) * 100:+.1f}%"
        if cost["bare_steps"] > 1:  # One step has no spread.
            overhead += f" (noise ±{cost['noise'] * 100:.1f}%)"
    return [*facts, Fact("Overhead", f"{overhead}; {steps}")]


def _input(summary: dict[str, Any]) -> str:
    words = [
        "" if summary["input_s"] is not None else "not seen",
        "" if summary["input_in_trace"] else "not in the trace",
    ]
    return ", ".join(word for word in words if word)


_CLASSES = {"matmul": "Matmul", "attention": "Attention", "memory": "Pointwise"}


def _operator_facts(simulated: dict[str, Any]) -> list[Fact]:
    facts = []
    for kind, label in _CLASSES.items():
        some = [row for row in simulated["classes"] if row["class"] == kind]
        if some:
            flops, moved = sum(row["flops"] for row in some), sum(row["bytes"] for row in some)
            figures = [units.count(sum(row["operators"] for row in some), "operator")]
            figures += [f"{units.digits(flops / 1e12)} TFLOP"] if flops >= 1e9 else []
            busy = _ms(sum(row["time_s"] for row in some))
            facts.append(Fact(label, ", ".join([*figures, units.size(moved, 4), busy])))
    return facts


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:,.2f} ms"
