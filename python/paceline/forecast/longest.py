"""The longest sequence with which a job fits: `--seq max`."""

from __future__ import annotations

import bisect
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paceline.catalog.models.config import Config, read_config
from paceline.catalog.models.families import context_of
from paceline.catalog.models.spec import config_named
from paceline.errors import InvalidArgumentError
from paceline.forecast.prepare import prepare
from paceline.forecast.request import Named
from paceline.forecast.typed import Typed
from paceline.forecast.verdict.remedy import attempt

LONGEST = "max"
"""The value of `seq` that asks for it."""
STEP = 256
"""Tokens of which lengths are multiples: trainers pad to a power of two or to a multiple of 64 to 256."""


@dataclass(frozen=True)
class Longest:
    """The longest sequence with which a job fits."""

    tokens: int
    """0: not even the shortest that was tried fits."""
    context: int
    """Tokens of the model's context, beyond which nothing was tried."""

    @property
    def tried(self) -> int:
        """The length to forecast."""
        return self.tokens or min(STEP, self.context)

    @property
    def words(self) -> str:
        """The first line of the answer."""
        if self.tokens == 0:
            return f"Longest sequence: not even {self.tried} tokens fit"
        whole = "the whole context" if self.tokens == self.context else f"of a context of {self.context:,}"
        return f"Longest sequence: {self.tokens:,} tokens, {whole}"


def asks(options: Mapping[str, Any]) -> bool:
    """Whether the longest sequence is asked for."""
    length = options.get("seq")
    return isinstance(length, str) and length.lower() == LONGEST


def longest(typed: Typed) -> Longest:
    """Return the longest sequence with which one configuration fits. Raises InvalidArgumentError."""
    sweep = typed.changed({"seq": STEP}).request()
    workload = sweep.workload(sweep.trace)
    if workload is None or not workload.is_text:
        raise InvalidArgumentError("max needs a model of text", setting="seq", remedy="drop {this}")
    if len(sweep.traces) > 1 or len(prepare(sweep).scenarios) > 1:
        raise InvalidArgumentError(
            "max is found for one configuration, and several are asked for",
            setting="seq",
            remedy="one value of each option, or {this=4096}",
        )
    context = context_of(_config(sweep.trace))

    def is_too_long(tokens: int) -> bool:
        trial = attempt(typed, {"seq": tokens})
        return trial is None or not trial.fits

    if not is_too_long(context):
        return Longest(context, context)
    lengths = range(STEP, context, STEP)
    fitting = bisect.bisect_left(lengths, True, key=is_too_long)
    return Longest(lengths[fitting - 1] if fitting else 0, context)


def _config(named: Named) -> Config:
    if isinstance(named, Config):
        return named
    return read_config(named) if isinstance(named, Path) else config_named(str(named))
