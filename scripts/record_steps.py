#!/usr/bin/env python3
"""Records the steps of docs/results/compute.md without a GPU, for `paceline study compute`.

python scripts/record_steps.py [MODEL …]     # python/paceline_lab/studies/steps/traces/MODEL.json.xz

Needs transformers and torchvision (group `trainers`); takes about half a minute a model.
"""

from __future__ import annotations

import lzma
import subprocess
import sys
import tempfile
from pathlib import Path

from paceline_lab.studies.compute.data import read
from paceline_lab.studies.steps.data import FOLDER

ROOT = Path(__file__).parent.parent
GPU = "h200"
"""On which they were measured."""


def record(model: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "step.json"
        script = [sys.executable, str(ROOT / "benches/gpu/steps.py"), model]
        command = [sys.executable, "-m", "paceline", "record", "--gpu", GPU, "-o", str(out), "--", *script]
        subprocess.run(command, check=True)
        packed = lzma.compress(out.read_bytes(), preset=9 | lzma.PRESET_EXTREME)
    (FOLDER / "traces" / f"{model}.json.xz").write_bytes(packed)


if __name__ == "__main__":
    models = [row.model for row in read() if row.group == "steps" and row.metric.is_time]
    for name in sys.argv[1:] or models:
        record(name)
