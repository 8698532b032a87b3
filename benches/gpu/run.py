"""What `make gpu` runs on a machine with a CUDA device: correctness, training, and all-reduce beside NCCL and gloo.

Several ranks may share one device. Without a device it says so in one line, and exits with 77.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch
from paceline import _core
from paceline.errors import InvalidArgumentError
from rich.console import Console
from rich.table import Table

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
SYSTEMS = ("paceline", "gloo", "nccl")


def device() -> dict[str, Any]:
    """Return what will be measured on. Exits with 77 without a device."""
    try:
        path, version, names = _core.cuda_driver()
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


def ranks(count: int, *words: str, limit_s: float, environ: dict[str, str] | None = None) -> tuple[int, str]:
    """Run a program on ranks of this machine; return its exit code and what rank 0 and errors say."""
    print(f"{count} ranks: {' '.join(Path(word).name for word in words)}", file=sys.stderr, flush=True)
    command = [sys.executable, "-m", "paceline", "run", "-np", str(count), "--", sys.executable, *words]
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
    return [json.loads(found) for found in re.findall(r"\{.*\}$", text, re.MULTILINE)]


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Run everything; what fails is part of the result. It is saved after each part."""
    content: dict[str, Any] = {"about": device(), "correct": [], "training": [], "all_reduce": []}

    def save() -> None:
        if options.json:
            options.json.write_text(json.dumps(content, indent=1) + "\n")

    for count in options.ranks:
        code, said = ranks(count, str(HERE / "worker.py"), "correct", limit_s=options.limit)
        found = documents(said)
        content["correct"].append(
            {"ranks": count, "code": code, **(found[0] if found and code == 0 else {"said": said[-4000:]})}
        )
        save()
    for backend in SYSTEMS:
        environ = {"NCCL_MULTI_RANK_GPU_ENABLE": "1"} if backend == "nccl" else {}
        if backend == "nccl" and options.nccl:
            environ["LD_PRELOAD"] = options.nccl
        limit_s = options.limit
        code, said = ranks(
            2, "examples/ddp.py", "--device", "cuda", "--backend", backend, limit_s=limit_s, environ=environ
        )
        content["training"].append({"backend": backend, "code": code, "said": said[-2000:]})
        save()
        for size in options.sizes:
            words = (str(HERE / "worker.py"), "time", backend, str(size), str(options.seconds))
            code, said = ranks(2, *words, limit_s=limit_s, environ=environ)
            found = documents(said)
            row = found[0] if found and code == 0 else {"said": said[-2000:]}
            content["all_reduce"].append({"backend": backend, "bytes": size, "code": code, **row})
            save()
    return content


def show(content: dict[str, Any]) -> None:
    """Print tables."""
    console = Console()
    about = content["about"]
    console.print(f"{', '.join(about['devices'])}; driver {about['driver']}; torch {about['torch']}")
    for part in content["correct"]:
        verdict = f"{part['compared']} results are right" if part["code"] == 0 else f"FAILED: {part['said'][-600:]}"
        console.print(f"{part['ranks']} ranks: {verdict}")
    for part in content["training"]:
        last = part["said"].strip().splitlines()[-1:] or ["nothing"]
        console.print(f"DDP with {part['backend']}: exit code {part['code']}, {last[0]}")
    table = Table(title="all-reduce of 2 ranks on one device: median microseconds (GB/s)")
    table.add_column("bytes", justify="right")
    for backend in SYSTEMS:
        table.add_column(backend, justify="right")
    by = {(row["backend"], row["bytes"]): row for row in content["all_reduce"]}
    for size in sorted({row["bytes"] for row in content["all_reduce"]}):
        cells = []
        for backend in SYSTEMS:
            row = by[backend, size]
            us = row.get("median_us")
            cells.append(f"{us:,.1f} ({size / us / 1e3:.2f})" if us else "failed")
        table.add_row(f"{size:,}", *cells)
    console.print(table)


def main() -> None:
    """Measure, print, and keep."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=lambda text: list(map(int, text.split(","))), default=[2, 4])
    parser.add_argument(
        "--sizes", type=lambda text: list(map(int, text.split(","))), default=[4 << 2 * i for i in range(14)]
    )
    parser.add_argument("--seconds", type=float, default=1.0, help="for each size and system")
    parser.add_argument("--limit", type=float, default=240, help="seconds that one program may take")
    parser.add_argument("--nccl", help="NCCL's library in place of torch's; several ranks on one device need 2.30")
    parser.add_argument("--json", type=Path, help="save the results to this file")
    options = parser.parse_args()
    content = measure(options)
    show(content)
    failed = [part for part in content["correct"] if part["code"] != 0]
    raise SystemExit(1 if failed else 0)


if __name__ == "__main__":
    main()
