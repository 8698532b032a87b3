#!/usr/bin/env python3
"""Records without a GPU the steps that studies forecast by recording: `paceline study compute`, `study finetune`.

python scripts/record_steps.py [NAME …]     # python/paceline_lab/studies/steps/traces/NAME.json.xz

Needs transformers, torchvision (group `trainers`) and peft; takes about a quarter of a minute each.
"""

from __future__ import annotations

import lzma
import subprocess
import sys
import tempfile
from pathlib import Path

from paceline_lab.studies import finetune
from paceline_lab.studies.compute.data import read
from paceline_lab.studies.steps.data import FOLDER, Row

BENCHES = Path(__file__).parent.parent / "benches" / "gpu"


def recordings() -> dict[str, tuple[str, list[str]]]:
    """Return the GPU and the script of each recording, by its name."""
    rows: list[Row] = [*read(), *finetune.read()]
    recorded = {row.forecast_model: row.forecast_gpu for row in rows if row.command.startswith("traces/")}
    return {name: (gpu, _script(name)) for name, gpu in recorded.items()}


def _script(name: str) -> list[str]:
    if name.startswith("peft-"):
        method, _, tokens = name.removeprefix("peft-").rpartition("-")
        return [str(BENCHES / "adapters.py"), method, tokens]
    return [str(BENCHES / "steps.py"), name]


def record(name: str, gpu: str, script: list[str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "step.json"
        command = [sys.executable, "-m", "paceline", "record", "--gpu", gpu, "-o", str(out), "--", sys.executable]
        subprocess.run([*command, *script], check=True)
        packed = lzma.compress(out.read_bytes(), preset=9 | lzma.PRESET_EXTREME)
    (FOLDER / "traces" / f"{name}.json.xz").write_bytes(packed)


if __name__ == "__main__":
    known = recordings()
    for name in sys.argv[1:] or known:
        record(name, *known[name])
