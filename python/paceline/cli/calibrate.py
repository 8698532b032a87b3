"""The command `paceline calibrate`: a device file from the operators of a device, measured here."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from paceline._internal import block, units
from paceline._internal.block import Fact
from paceline._internal.console import Bar, put, say
from paceline._internal.extras import need
from paceline._internal.files import check_writable, replaced
from paceline.cli import param_types as types
from paceline.cli.command import Command
from paceline.cli.usage import CommandError
from paceline.errors import InvalidArgumentError
from paceline.settings import kinds

if TYPE_CHECKING:
    from paceline.calibrate.device import Device
    from paceline.calibrate.measure import Measurements

_SECONDS, _QUICK_S, _LONGEST_S = 120.0, 20.0, 3600.0
_UNSTEADY, _NOTED = 0.3, 0.1
"""Spreads: beyond the first, no file is written; the second is noted."""


class _CannotDoHere(CommandError):
    """This machine lacks something."""

    exit_code = 77


def _seconds(text: str) -> float:
    seconds: float = kinds.POSITIVE.check(text)
    if seconds > _LONGEST_S:
        raise InvalidArgumentError(
            f"must be at most {_LONGEST_S:.0f} s, not '{text[:80]}'", remedy=f"{{this={_LONGEST_S:.0f}}}"
        )
    return seconds


def _device(text: str) -> str:
    if re.fullmatch(r"cpu|cuda(:\d{1,3})?", text) is None:
        raise InvalidArgumentError(f"must be cpu, cuda or cuda:N, not '{text[:80]}'", remedy="{this=cpu}")
    return text


@click.command(cls=Command)
@click.option(
    "-o", "--output", type=click.Path(path_type=Path), metavar="FILE", required=True, help="Device file: mine.json."
)
@click.option(
    "--device",
    type=types.Value("NAME", _device),
    help="cpu, cuda or cuda:N.  [default: cuda, if there is one]",
)
@click.option("--quick", is_flag=True, help="Fewer operators, in 20 seconds.")
@click.option(
    "--seconds", type=types.Value("SECONDS", _seconds), help="How long to measure.  [default: 120; --quick: 20]"
)
@click.option(
    "--threads",
    type=types.Value("N", kinds.whole(1, 1000).check),
    help="CPU threads, as many as your script uses.  [default: torch's]",
)
@click.option(
    "--name", type=types.Value("NAME", kinds.PRINTABLE.check), help="Name of the device.  [default: the file's]"
)
@click.option("--json", "as_json", is_flag=True, help="Print the summary as JSON.")
def calibrate(
    *,
    output: Path,
    device: str | None,
    quick: bool,
    seconds: float | None,
    threads: int | None,
    name: str | None,
    as_json: bool,
) -> None:
    """Measure the operators of a GPU, or of this machine's CPU, for forecasts.

    It trains random programs, times their operators and writes a device file, which --gpu takes. While it runs, the
    device should be free. On AMD's GPUs (ROCm), it has not been tried.

    \b
    paceline calibrate -o mine.json
    paceline calibrate --device cpu --threads 8 -o cpu.json
    paceline record --gpu cpu.json -o trace.json -- python train.py
    """
    need("calibrating", "torch", "torch")
    if output.suffix != ".json":
        raise InvalidArgumentError(
            "--output must end in .json, as --gpu expects", remedy=f"--output {output.with_suffix('.json')!s:.80}"
        )
    check_writable("--output", output)
    from paceline.calibrate.document import document

    chosen = _chosen(device, threads)
    _refuse(chosen.busy(), chosen)
    before, begin = chosen.state(), time.perf_counter()
    with Bar(f"measuring {chosen.title}") as bar:
        measurements = _measured(chosen, seconds or (_QUICK_S if quick else _SECONDS), bar)
    lasted = time.perf_counter() - begin
    _refuse(chosen.busy(), chosen)
    spread = max(measurements.spread, abs(measurements.drift))
    if spread > _UNSTEADY:
        raise CommandError(
            f"operators took ±{spread:.0%} from step to step: the device is busy, or its clocks change",
            remedy="end other programs, or --threads 1" if chosen.device.type == "cpu" else "end other programs",
        )
    conditions = {
        "date": time.strftime("%Y-%m-%d %H:%M:%S %z"),
        "seconds": round(lasted),
        "versions": chosen.versions(),
        "before": before,
        "after": chosen.state(),
        "programs": measurements.programs,
        "spread": round(measurements.spread, 4),
        "drift": round(measurements.drift, 4),
    }
    fields = document(name or output.stem, chosen, measurements, conditions)
    with replaced(output) as new:
        new.write_text(json.dumps(fields) + "\n", encoding="utf-8")
    summary = {
        **{key: value for key, value in fields.items() if key != "calibration"},
        "operators": len(fields["calibration"]["operators"]),
        "dispatch_s": fields["calibration"]["dispatch_s"],
        "conditions": conditions,
    }
    if as_json:
        put(json.dumps(summary, indent=1))
        return
    _show(summary, output, spread)


def _chosen(device: str | None, threads: int | None) -> Device:
    import torch

    from paceline.calibrate.device import Cpu, Gpu

    name, _, number = (device or ("cuda" if torch.cuda.is_available() else "cpu")).partition(":")
    if name == "cpu":
        return Cpu(threads)
    if threads is not None:
        raise InvalidArgumentError("--threads is for the CPU's", remedy="--device cpu, or drop --threads")
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if int(number or 0) >= count:
        raise _CannotDoHere(
            f"this machine has {count or 'no'} CUDA device{'' if count == 1 else 's'} that torch can use, and {device} "
            "is not among them",
            remedy=f"--device {f'cuda:{count - 1}' if count else 'cpu'}",
        )
    return Gpu(int(number or 0))


def _measured(chosen: Device, seconds: float, bar: Bar) -> Measurements:
    from paceline.calibrate.measure import measure

    return measure(chosen.device, chosen.clock, seconds=seconds, dtypes=chosen.dtypes, progress=bar)


def _refuse(busy: str, chosen: Device) -> None:
    if busy:
        remedy = "end them, or --threads 1" if chosen.device.type == "cpu" else "wait, or another --device cuda:N"
        raise CommandError(f"the device is not free: {busy}", remedy=remedy)


def _show(summary: dict[str, Any], output: Path, spread: float) -> None:
    conditions = summary["conditions"]
    peaks = ", ".join(f"{name} {units.short(rate / 1e12, 3)}" for name, rate in summary["peak_flops"].items())
    threads = conditions["before"].get("threads")
    used = f", {units.count(threads, 'thread')}" if threads else ""
    dispatch = ", ".join(f"{phase} {seconds * 1e6:.1f} us" for phase, seconds in summary["dispatch_s"].items())
    facts = [
        Fact("Operators", f"{summary['operators']:,} of {units.count(conditions['programs'], 'program')}"),
        Fact("Peak", f"{peaks} TFLOPS, memory {units.short(summary['memory_bandwidth'] / 1e9, 3)} GB/s"),
        Fact("Dispatch", f"an operator, besides its own time: {dispatch}"),
        Fact("Spread", f"±{conditions['spread']:.1%} from step to step, {conditions['drift']:+.1%} over the time"),
    ]
    remarks = []
    if spread > _NOTED:
        remarks.append(f"Times changed by {spread:.0%}: was the device free? Forecasts with this file are as uncertain")
    state = conditions["before"]
    if state.get("others", 0.0) + state.get("threads", 0) > state.get("processors", 0):
        remarks.append(
            f"Other programs used {state['others']:.1f} of {state['processors']} processors, so fewer operators were "
            "measured than on a free machine. More of them make forecasts closer: --seconds 600"
        )
    if conditions["versions"].get("rocm"):
        remarks.append("Calibration on ROCm has not been tried by Paceline's authors")
    say(
        [
            *block.headline(f"Calibrated {summary['title']}{used} in {conditions['seconds']} s"),
            "",
            *block.block(facts),
            *(block.notes(remarks) if remarks else []),
            "",
            f"Wrote {output}",
            *block.suggestion(f"paceline record --gpu {output} -o mine.json -- python train.py"),
        ]
    )
