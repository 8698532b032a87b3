"""A job that runs for a long time keeps its memory, its descriptors and its threads. PACELINE_SOAK_S sets how long."""

import os
import sys

import pytest
from job_workers.launch import run

SOAK_S = float(os.environ.get("PACELINE_SOAK_S", "600"))
pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs /proc and memfd"),
]


@pytest.mark.slow
@pytest.mark.timeout(SOAK_S + 300)
def test_memory_descriptors_and_threads_stay_the_same(tmp_path):
    results = run(tmp_path, 3, "soak", SOAK_S, limit_s=SOAK_S + 200)
    for rank, result in enumerate(results):
        samples = result["samples"]
        print(f"rank {rank}: {result['turns']} turns, resident KiB {[sample['kib'] for sample in samples]}")
        for name in ("descriptors", "threads", "memfd", "shm"):
            assert len({sample[name] for sample in samples}) == 1, (rank, name, samples)
        # Half of the samples each: a leak grows, noise does not.
        half = max(1, len(samples) // 2)
        early, late = (sorted(sample["kib"] for sample in part) for part in (samples[:half], samples[-half:]))
        assert late[half // 2] < 1.05 * early[half // 2] + 2048, (rank, early, late)
