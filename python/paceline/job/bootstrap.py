"""What ranks exchange before they are connected: a secret, and their addresses."""

from __future__ import annotations

import json
import secrets
from typing import Protocol

import paceline
from paceline._core import mpi_exchange
from paceline.errors import JobError
from paceline.job.settings import Settings


class Exchange(Protocol):
    """An all-gather of small blobs; all ranks call it equally often."""

    @property
    def rank(self) -> int:
        """Rank of this process."""

    @property
    def size(self) -> int:
        """Number of ranks."""

    def __call__(self, blob: bytes) -> list[bytes]:
        """Return every rank's blob, in rank order."""


class MpiExchange:
    """An all-gather through MPI, which it initialises."""

    def __init__(self, rank: int, size: int, settings: Settings) -> None:
        """`rank` and `size` are the launcher's; MPI must agree with them."""
        self.rank, self.size = rank, size
        self._settings = settings.to_json()

    def __call__(self, blob: bytes) -> list[bytes]:
        """Return every rank's blob, in rank order.

        Raises InvalidArgumentError without MPI, JobError for missing ranks.
        """
        return mpi_exchange(self.rank, self.size, self._settings, blob)


def share_secret(exchange: Exchange, own: str | None) -> str:
    """Agree on the job's secret: `own`, which all ranks have from the environment, or one that rank 0 makes.

    A secret made here passes through the exchange, so it protects against everyone who cannot reach that: MPI, or
    torch's store (torchrun's rendezvous has no authentication). Raises JobError if some ranks have a secret and others
    have none, or if the ranks run different versions of Paceline.
    """
    made = secrets.token_hex(32) if own is None and exchange.rank == 0 else ""
    told = json.dumps({"version": paceline.__version__, "own": own is not None, "made": made})
    said = [json.loads(blob) for blob in exchange(told.encode())]
    for rank, other in enumerate(said):
        if other["version"] != paceline.__version__:
            raise JobError(
                f"rank {exchange.rank} runs paceline {paceline.__version__}, rank {rank} {other['version']}; "
                "install one version everywhere"
            )
    without = [rank for rank, other in enumerate(said) if not other["own"]]
    if without and len(without) < exchange.size:
        raise JobError(
            f"{named(without)} of {exchange.size} did not get PACELINE_SECRET or PACELINE_SECRET_FILE, the others "
            "did; set it for all ranks or for none"
        )
    return own if own is not None else str(said[0]["made"])


def named(ranks: list[int]) -> str:
    """Return words such as `rank 3` or `ranks 0, 2`."""
    shown = ", ".join(str(rank) for rank in ranks[:16]) + (", …" if len(ranks) > 16 else "")
    return f"rank {shown}" if len(ranks) == 1 else f"ranks {shown}"
