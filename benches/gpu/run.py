"""What `make gpu` runs on a machine with a CUDA device: correctness, faults, training, and times beside NCCL and gloo.

Several ranks may share one device. Without a device it says so in one line, and exits with 77.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from paceline import _core
from paceline.catalog.gpus import find_hardware
from paceline.errors import InvalidArgumentError, PacelineError
from rich.console import Console
from rich.table import Table

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
# What is timed, with what is set for it.
SYSTEMS = {
    "ipc": ("paceline", {"PACELINE_CUDA": "ipc"}),
    "ipc, no cache": ("paceline", {"PACELINE_CUDA": "ipc", "PACELINE_CUDA_POINTER_CACHE": "0"}),
    "host": ("paceline", {"PACELINE_CUDA": "host"}),
    "nccl": ("nccl", {"NCCL_MULTI_RANK_GPU_ENABLE": "1"}),
    "gloo": ("gloo", {}),
}
# With --mpi: what MPI has, it does with the memory of devices.
MPI = {"PACELINE_TRANSPORT": "mpi", "PACELINE_STRATEGY": "native", "PACELINE_CUDA": "mpi"}
# Without it, torch refuses deterministic matrix products.
REPEATABLE = {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
ENGINES = ("ipc", "host")
# How ranks agree on the order of Horovod's calls.
COORDINATORS = ("negotiate", "graph", "nonblocking")
HOOKS = "none,fp16,bf16,int8,powersgd:2,topk:0.1,strategy:ring"
ARRAYS = ("cupy", "numba", "jax", "torch")
OTHER_CALLS = ("all_gather", "reduce_scatter", "broadcast")
SOME_SIZES = (1 << 10, 1 << 16, 1 << 20, 1 << 24, 1 << 28)
# What happens, the environment, and what at least one rank must say of it; None: nothing goes wrong.
FAULTS: tuple[tuple[str, dict[str, str], str | None], ...] = (
    ("die", {"PACELINE_CUDA": "ipc"}, "rank 1 .* died"),
    ("lost", {"PACELINE_CUDA": "ipc"}, "CUDA_ERROR_ASSERT"),
    ("lost", {"PACELINE_CUDA": "host"}, "CUDA_ERROR_ASSERT"),
    ("stuck", {"PACELINE_CUDA": "ipc"}, "cuda:.* of this rank has not reached all_reduce"),
    ("stuck", {"PACELINE_CUDA": "host"}, "cuda:.* of this rank has not reached all_reduce"),
    ("late", {"PACELINE_CUDA": "ipc"}, None),
    ("differ", {"PACELINE_CUDA": "ipc"}, "101 elements"),
    ("free", {"PACELINE_CUDA": "ipc"}, None),
    ("stress", {"PACELINE_CUDA": "ipc"}, None),
    ("alloc", {"PACELINE_CUDA": "auto", "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}, None),
    ("alloc", {"PACELINE_CUDA": "ipc", "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}, "expandable_segments"),
)


def device() -> dict[str, Any]:
    """Return what will be measured on. Exits with 77 without a device."""
    try:
        path, version, names = _core.cuda_driver(os.environ.get("PACELINE_CUDA_LIBRARY") or None)
    except InvalidArgumentError as error:
        print(f"make gpu: no CUDA device here: {error}", file=sys.stderr)
        raise SystemExit(77) from None
    if not names or not torch.cuda.is_available():
        print(
            f"make gpu: driver {version}, {len(names)} devices, but torch {torch.__version__} uses none",
            file=sys.stderr,
        )
        raise SystemExit(77)
    return {"devices": names, "driver": version, "library": str(path), "torch": torch.__version__}


def chosen(system: str, options: argparse.Namespace) -> tuple[str, dict[str, str]]:
    """Return the backend and the environment of a system; "cpu" is Paceline without devices."""
    backend, environ = SYSTEMS.get(system, ("paceline", {}))
    preload = {"LD_PRELOAD": options.nccl} if backend == "nccl" and options.nccl else {}
    return backend, {**environ, **preload}


def ranks(
    count: int, *words: str, limit_s: float, environ: dict[str, str] | None = None, launcher: list[str] | None = None
) -> tuple[int, str]:
    """Run a program on ranks of this machine; return its exit code and what rank 0 and errors say."""
    print(f"{count} ranks: {' '.join(Path(word).name for word in words)}", file=sys.stderr, flush=True)
    paceline = [sys.executable, "-m", "paceline", "run", "-np", str(count), "--"]
    command = [*([*launcher, "-n", str(count)] if launcher else paceline), sys.executable, *words]
    try:
        done = subprocess.run(
            command,
            cwd=ROOT,
            env={**os.environ, **(environ or {})},
            capture_output=True,
            text=True,
            timeout=limit_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return 124, f"not over after {limit_s:.0f} s"
    return done.returncode, done.stdout + done.stderr


def documents(text: str) -> list[dict[str, Any]]:
    """Return the lines of JSON in a program's output, without the ranks' prefixes."""
    actual = []
    for line in re.findall(r"\{.*\}$", text, re.MULTILINE):
        with contextlib.suppress(json.JSONDecodeError):  # Something else in braces.
            actual.append(json.loads(line))
    return actual


Content = dict[str, Any]


def measure(options: argparse.Namespace) -> Content:
    """Run the parts; what fails is part of the result. It is saved before each step of a part.

    Once the time for all of them is over, no step begins; the parts that miss some are listed as `cut`.
    """
    content: Content = {"about": device(), "took_s": {}, "cut": []}
    ends = time.monotonic() + 60 * options.minutes
    for part in options.parts:
        began = time.monotonic()
        for _ in PARTS[part](options, content):
            if time.monotonic() >= ends:
                content["cut"].append(part)
                break
            save(content, options.json)
        content["took_s"][part] = round(time.monotonic() - began, 1)
        save(content, options.json)
    return content


def save(content: Content, path: Path | None) -> None:
    """Save the results, if a file is named."""
    if path:
        path.write_text(json.dumps(content, indent=1) + "\n")


def correct(options: argparse.Namespace, content: Content) -> Iterator[None]:
    """Compare results with the CPU's: of all strategies, dtypes and collectives."""
    content["correct"] = actual = []
    for count in options.ranks:
        for engine in ENGINES:
            yield
            environ = {"PACELINE_CUDA": engine}
            code, said = ranks(count, str(HERE / "worker.py"), "correct", limit_s=options.limit, environ=environ)
            actual.append(answer(engine, code, said, count))
    for more in (horovod, hooks, arrays):
        yield
        actual += more(options.limit)


def mpi(options: argparse.Namespace, content: Content) -> Iterator[None]:
    """Compare results by an MPI library that takes the memory of devices, and take times."""
    content["mpi"] = actual = []
    for mpirun in options.mpi:
        launcher = shlex.split(mpirun)
        name = f"mpi ({launcher[0]})"
        for count in options.ranks:
            yield
            words = (str(HERE / "worker.py"), "correct")
            code, said = ranks(count, *words, limit_s=options.limit, environ=MPI, launcher=launcher)
            actual.append(answer(name, code, said, count))
        yield
        rows, failure = [], ""
        for call in ("all_reduce", *OTHER_CALLS):
            words = (str(HERE / "worker.py"), "time", "paceline", call, ",".join(map(str, SOME_SIZES)))
            code, said = ranks(2, *words, str(options.seconds), limit_s=options.limit, environ=MPI, launcher=launcher)
            rows += documents(said)
            failure += said[-2000:] if code else ""
        part = {"code": 1, "rows": rows, "said": failure} if failure else {"code": 0, "rows": rows}
        content.setdefault("times", {})[name] = part


def faults(options: argparse.Namespace, content: Content) -> Iterator[None]:
    """Let things go wrong."""
    content["faults"] = actual = []
    for name, environ, wanted in FAULTS:
        yield
        actual.append(fault(name, environ, wanted, options.limit))


def timed(options: argparse.Namespace, content: Content) -> Iterator[None]:
    """Take the times of collectives, beside NCCL and gloo."""
    actual = content.setdefault("times", {})
    for system in SYSTEMS:
        yield
        backend, environ = chosen(system, options)
        rows, code, said = [], 0, ""
        for calls, sizes in (("all_reduce", options.sizes), (",".join(OTHER_CALLS), SOME_SIZES)):
            words = (str(HERE / "worker.py"), "time", backend, calls, ",".join(map(str, sizes)), str(options.seconds))
            one, more = ranks(2, *words, limit_s=options.limit, environ=environ)
            code, said = code or one, said + (more if one else "")
            rows += documents(more)
        part = {"code": code, "rows": rows}
        actual[system] = part if code == 0 else {**part, "said": said[-4000:]}


def training(options: argparse.Namespace, content: Content) -> Iterator[None]:
    """Train the examples, and compare weights."""
    content["training"] = actual = []
    with tempfile.TemporaryDirectory() as folder:
        for system in options.train:
            yield
            actual.append(train(system, options, Path(folder)))
    yield
    code, said = ranks(2, "examples/horovod_imagenet.py", "--synthetic", "--epochs", "1", limit_s=options.limit)
    content["horovod"] = {"code": code, "said": said[-2000:]}


def in_shards(options: argparse.Namespace, content: Content) -> Iterator[None]:
    """Train a GPT in shards."""
    content["sharded"] = actual = []
    for system in SHARDED:
        yield
        actual += sharded(system, options)


def bench(options: argparse.Namespace, content: Content) -> Iterator[None]:
    """Run `paceline bench`."""
    yield
    content["bench"] = benched(options)


def recordings(options: argparse.Namespace, content: Content) -> Iterator[None]:
    """Record a training on the device."""
    yield
    content["recorded"] = recorded(options.limit)


def operators(options: argparse.Namespace, content: Content) -> Iterator[None]:
    """Time single operators, into benches/gpu/operators-DEVICE.csv."""
    yield
    out = HERE / f"operators-{named()}.csv"
    command = [sys.executable, str(HERE / "operators.py"), str(out), "--seconds", str(0.75 * options.limit)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=options.limit, check=False)
    content["operators"] = {"code": done.returncode, "file": str(out.relative_to(ROOT)), "said": done.stderr[-2000:]}


def steps(options: argparse.Namespace, content: Content) -> Iterator[None]:
    """Train the models of docs/results/compute.md."""
    content["steps"] = actual = []
    if any(find_spec(name) is None for name in ("transformers", "torchvision")):
        actual.append({"said": "needs transformers and torchvision (group trainers)"})
        return
    for model in MODELS:
        yield
        command = [sys.executable, str(HERE / "steps.py"), model]
        print(f"steps.py {model}", file=sys.stderr, flush=True)
        done = subprocess.run(command, capture_output=True, text=True, timeout=options.limit, check=False)
        rows = documents(done.stdout)
        actual += rows if rows else [{"model": model, "said": (done.stdout + done.stderr)[-2000:]}]


# Each yields before each of its steps.
PARTS = {
    "correct": correct,
    "mpi": mpi,
    "faults": faults,
    "times": timed,
    "training": training,
    "sharded": in_shards,
    "bench": bench,
    "recorded": recordings,
    "operators": operators,
    "steps": steps,
}


def answer(by: str, code: int, said: str, count: int = 2) -> dict[str, Any]:
    """Return a part of `correct`: what rank 0 says, or what all say if it failed."""
    actual = documents(said)
    compared = sum(one.get("compared", 1) for one in actual)
    if code or not actual or any("error" in one for one in actual):
        return {"ranks": count, "engine": by, "code": code or 1, "said": said[-4000:]}
    return {"ranks": count, "engine": by, "code": 0, "compared": compared, "found": actual}


def horovod(limit_s: float) -> list[dict[str, Any]]:
    """Compare the results of Horovod's calls by each engine, and with each coordinator."""
    parts = []
    for engine, coordinator in [
        *((engine, "negotiate") for engine in ENGINES),
        *(("ipc", c) for c in COORDINATORS[1:]),
    ]:
        environ = {"PACELINE_CUDA": engine, "PACELINE_COORDINATOR": coordinator}
        code, said = ranks(2, str(HERE / "worker.py"), "horovod", limit_s=limit_s, environ=environ)
        parts.append(answer(f"{engine}, Horovod's calls, {coordinator}", code, said))
    return parts


def hooks(limit_s: float) -> list[dict[str, Any]]:
    """Train by DDP with communication hooks."""
    parts = []
    for engine in ENGINES:
        environ = {"PACELINE_CUDA": engine}
        code, said = ranks(2, str(HERE / "hooks.py"), HOOKS, limit_s=limit_s, environ=environ)
        parts.append(answer(f"{engine}, DDP's communication hooks", code, said))
    return parts


def arrays(limit_s: float) -> list[dict[str, Any]]:
    """Reduce arrays of other libraries, of those that are installed."""
    parts = []
    for name in ARRAYS:
        if find_spec(name) is not None:
            code, said = ranks(2, str(HERE / "arrays.py"), name, limit_s=limit_s)
            parts.append(answer(f"auto, arrays of {name}", code, said))
    return parts


def fault(name: str, environ: dict[str, str], wanted: str | None, limit_s: float) -> dict[str, Any]:
    """Let something go wrong, and see whether it is named, or whether nothing goes wrong."""
    _, said = ranks(2, str(HERE / "faults.py"), name, limit_s=limit_s, environ=environ)
    actual = documents(said)
    errors = [one["error"] for one in actual if one.get("error")]
    survivors = 1 if name == "die" else 2
    right = len(actual) == survivors and (
        not errors if wanted is None else any(re.search(wanted, error) for error in errors)
    )
    released_s = max((one["released_s"] for one in actual), default=None)
    result = {"fault": name, "environ": environ, "right": right, "errors": errors, "released_s": released_s}
    return result if right else {**result, "said": said[-4000:]}


def benched(options: argparse.Namespace) -> dict[str, Any]:
    """Run `paceline bench` on the device."""
    words = ["--model", options.model, "--engine", "paceline,ddp-nccl,ddp-gloo", "--device", "cuda", "-np", "2"]
    words += ["--num-batches", "20", "--rounds", "2", "--json", "--limit", str(options.limit)]
    environ = {**os.environ, "NCCL_MULTI_RANK_GPU_ENABLE": "1"}
    if options.nccl:
        environ["LD_PRELOAD"] = options.nccl
    print(f"paceline bench {' '.join(words)}", file=sys.stderr, flush=True)
    command = [sys.executable, "-m", "paceline", "bench", *words]
    done = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, check=False)
    if done.returncode:
        return {"code": done.returncode, "said": (done.stdout + done.stderr)[-3000:]}
    actual = json.loads(done.stdout)
    kept = ("engine", "images_per_s", "total_images_per_s", "median_step_s", "weights_differ")
    return {
        "rows": [{key: row[key] for key in kept if key in row} for row in actual["rows"]],
        "skipped": actual["skipped"],
    }


def train(system: str, options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Train with a system, and compare the weights with those of the first one that was trained."""
    backend, environ = chosen(system, options)
    device = "cpu" if system == "cpu" else "cuda"
    saved = folder / f"{system}.pt"
    # The same kernels in each run, without TF32: so the weights can be compared.
    environ |= {"NVIDIA_TF32_OVERRIDE": "0", **REPEATABLE}
    words = ("--deterministic", "--device", device, "--backend", backend, "--steps", "40", "--weights", str(saved))
    code, said = ranks(2, "examples/ddp.py", *words, limit_s=options.limit, environ=environ)
    result: dict[str, Any] = {"system": system, "code": code, "said": said[-2000:]}
    first = folder / f"{options.train[0]}.pt"
    if code == 0 and first.exists():
        one, other = torch.load(first), torch.load(saved)
        result["differs"] = float((one - other).abs().max() / one.abs().max())
    return result


# By what a GPT is trained in several shardings: system, ranks, shardings.
SHARDED = (
    ("ipc", 2, "alone,none,zero1,zero3"),
    ("host", 2, "none"),
    ("nccl", 2, "none,zero1,zero3"),
    ("ipc", 4, "zero3,hsdp:2"),
    ("nccl", 4, "zero3,hsdp:2"),
)


def sharded(how: tuple[str, int, str], options: argparse.Namespace) -> list[dict[str, Any]]:
    """Train a GPT by a system in several shardings."""
    system, count, shardings = how
    if count not in options.ranks:
        return []
    backend, environ = chosen(system, options)
    environ |= REPEATABLE
    words = (str(HERE / "sharded.py"), shardings, backend, "10")
    code, said = ranks(count, *words, limit_s=options.limit, environ=environ)
    actual: list[dict[str, Any]] = [{"system": system, "ranks": count, **row} for row in documents(said)]
    return actual if code == 0 else [*actual, {"system": system, "ranks": count, "said": said[-3000:]}]


# The models of steps.py.
MODELS = ("llama-3.2-1b", "gpt2-medium", "resnet50", "bert-large", "llama-3-8b", "convnext_base", "vgg16", "swin_t")
# Layers, hidden size, heads, sequence, vocabulary, batch, steps.
GPT2 = {"layers": 12, "hidden": 768, "heads": 12, "sequence": 1024, "vocabulary": 50257, "batch": 8, "steps": 18}


def recorded(limit_s: float) -> dict[str, Any]:
    """Record GPT-2 on the device, and as the roofline has it for the same one."""
    actual: dict[str, Any] = {}
    for what, words in (
        ("device", []),
        ("roofline", ["--gpu", named(), "--dtype", "bf16"]),
    ):
        with tempfile.TemporaryDirectory() as folder:
            output = str(Path(folder) / "trace.json")
            script = [sys.executable, "examples/gpt.py", *(f"--{name}={value}" for name, value in GPT2.items())]
            command = [sys.executable, "-m", "paceline", "record", *words, "-o", output, "--json", "--", *script]
            print(f"record gpt.py: {what}", file=sys.stderr, flush=True)
            done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=limit_s, check=False)
        begins = done.stdout.find("\n{\n")
        if done.returncode == 0 and begins >= 0:
            summary = json.loads(done.stdout[begins:])
            wanted = {"device", "name"}
            actual[what] = {key: value for key, value in summary.items() if key.endswith("_s") or key in wanted}
        else:
            actual[what] = {"said": (done.stdout + done.stderr)[-2000:]}
    return actual


def show(content: dict[str, Any], minutes: float) -> None:
    """Print tables."""
    console = Console()
    about = content["about"]
    console.print(f"{', '.join(about['devices'])}; driver {about['driver']}; torch {about['torch']}")
    for part in [*content.get("correct", []), *content.get("mpi", [])]:
        verdict = f"{part['compared']} results are right" if part["code"] == 0 else f"FAILED: {part['said'][-1500:]}"
        console.print(f"{part['ranks']} ranks, {part['engine']}: {verdict}")
    for part in content.get("faults", []):
        how = " ".join(f"{key}={value}" for key, value in part["environ"].items())
        verdict = "as it should be" if part["right"] else f"WRONG: {part['said'][-1500:]}"
        first = f": {part['errors'][0][:160]}" if part["errors"] else ""
        console.print(f"{part['fault']} ({how}): {verdict}, the device free after {part['released_s']} s{first}")
    for part in content.get("training", []):
        last = part["said"].strip().splitlines()[-1:] or ["nothing"]
        differs = f"; weights differ by {part['differs']:.1e} from the first" if "differs" in part else ""
        console.print(f"DDP with {part['system']}: exit code {part['code']}, {last[0]}{differs}")
    if "horovod" in content:
        console.print(f"horovod_imagenet.py: exit code {content['horovod']['code']}")
    for row in content.get("sharded", []):
        console.print(" ".join(f"{key} {value}" for key, value in row.items()))
    benched = content.get("bench", {"rows": []})
    for row in benched.get("rows", [benched]):
        console.print(f"bench: {row}")
    for what, summary in content.get("recorded", {}).items():
        console.print(f"GPT-2, {what}: {summary}")
    if "operators" in content:
        console.print(f"operators: exit code {content['operators']['code']}, {content['operators']['file']}")
    for row in content.get("steps", []):
        console.print(" ".join(f"{key} {value}" for key, value in row.items()))
    for call in ("all_reduce", *OTHER_CALLS) if "times" in content else ():
        console.print(times(content, call))
    for system, part in content.get("times", {}).items():
        if part["code"]:
            console.print(f"{system} FAILED: {part['said'][-1500:]}")
    console.print("Seconds: " + ", ".join(f"{part} {took_s:.0f}" for part, took_s in content["took_s"].items()))
    if content["cut"]:
        console.print(
            f"Not all has run within --minutes {minutes:g}; steps are missing of {', '.join(content['cut'])}."
        )


def times(content: dict[str, Any], call: str) -> Table:
    """Return the times of a collective, with a bound for `ipc` beside them.

    The bound is the time of the smallest message, and what the device needs at its peak to read and write its memory:
    each contribution once, and the result at each rank.
    """
    table = Table(title=f"{call} of 2 ranks on one device: median microseconds (GB/s)")
    table.add_column("bytes", justify="right")
    systems = list(content["times"])
    for system in systems:
        table.add_column(system, justify="right")
    table.add_column("bound for ipc", justify="right")
    actual = {
        (system, row["bytes"]): row["median_us"]
        for system, part in content["times"].items()
        for row in part["rows"]
        if row.get("call") == call
    }
    sizes = sorted({size for _, size in actual})
    moved = {"all_reduce": 4, "all_gather": 3, "reduce_scatter": 3, "broadcast": 2}[call]
    bytes_per_us = memory_bandwidth() / 1e6
    for size in sizes:
        cells = []
        for system in systems:
            us = actual.get((system, size))
            cells.append(f"{us:,.1f} ({size / us / 1e3:.2f})" if us else "not measured")
        least = actual.get(("ipc", sizes[0]))
        bound = f"{least + moved * size / bytes_per_us:,.1f}" if least and bytes_per_us else ""
        table.add_row(f"{size:,}", *cells, bound)
    return table


def memory_bandwidth() -> float:
    """Return the peak of the device's memory in bytes/s, from the file about it; 0 if there is none."""
    try:
        return float(find_hardware(named()).memory_bandwidth)
    except PacelineError:
        return 0.0


def named() -> str:
    """Return the device's short name."""
    name = re.search(r"[AVHLB]\d{2,3}S?", torch.cuda.get_device_name())
    return name[0].lower() if name else "h100"


def main() -> None:
    """Measure, print, and keep."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--parts",
        type=lambda text: text.split(","),
        default=list(PARTS),
        metavar="LIST",
        help=f"of {', '.join(PARTS)}; default: all",
    )
    parser.add_argument("--ranks", type=lambda text: list(map(int, text.split(","))), default=[2, 4])
    parser.add_argument(
        "--sizes", type=lambda text: list(map(int, text.split(","))), default=[4 << 2 * i for i in range(14)]
    )
    parser.add_argument("--train", type=lambda text: text.split(","), default=["ipc", "host", "nccl", "cpu"])
    parser.add_argument("--model", default="resnet50", help="for `paceline bench`")
    parser.add_argument("--seconds", type=float, default=0.2, help="for each size and system")
    parser.add_argument("--minutes", type=float, default=9.0, help="after these, no further step of a part begins")
    parser.add_argument("--limit", type=float, default=240, help="seconds that one program may take")
    parser.add_argument("--nccl", help="NCCL's library in place of torch's; several ranks on one device need 2.30")
    parser.add_argument(
        "--mpi", action="append", default=[], metavar="MPIRUN", help="also by the CUDA-aware MPI of this launcher"
    )
    parser.add_argument("--json", type=Path, help="save the results to this file")
    options = parser.parse_args()
    if unknown := set(options.parts) - set(PARTS):
        parser.error(f"--parts: {', '.join(sorted(unknown))} is none of {', '.join(PARTS)}")
    content = measure(options)
    show(content, options.minutes)
    raise SystemExit(1 if failed(content) else 0)


def failed(content: dict[str, Any]) -> list[str]:
    """Name the parts in which Paceline failed; NCCL and gloo are only compared with it."""
    ours = {system for system, (backend, _) in SYSTEMS.items() if backend == "paceline"} | {"cpu"}
    timed = content.get("times", {}).items()
    parts = {
        "correct": any(part["code"] for part in content.get("correct", [])),
        "mpi": any(part["code"] for part in content.get("mpi", [])),
        "faults": not all(part["right"] for part in content.get("faults", [])),
        "training": any(part["code"] for part in content.get("training", []) if part["system"] in ours),
        "times": any(part["code"] for system, part in timed if system in ours or system.startswith("mpi")),
        "sharded": any("said" in part for part in content.get("sharded", []) if part["system"] in ours),
        "horovod": content.get("horovod", {}).get("code", 0) != 0,
        "recorded": any("said" in part for part in content.get("recorded", {}).values()),
        "operators": content.get("operators", {}).get("code", 0) != 0,
        "steps": any("said" in row for row in content.get("steps", [])),
    }
    return [name for name, wrong in parts.items() if wrong]


if __name__ == "__main__":
    main()
