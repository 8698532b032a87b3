"""Several checks in one launch."""

import torch

BACKENDS = tuple(map(int, torch.__version__.split("+")[0].split(".")[:2])) >= (2, 15)
"""Whether torch lets others write backends: before, split_group is for devices and monitored_barrier for gloo alone."""


def run_all(checks, rank, size):
    """One after the other on every rank; reports which one failed."""
    for check in checks:
        try:
            check(rank, size)
        except BaseException as error:
            error.add_note(f"in {check.__name__}")
            raise
