"""The longest sequence with which a job fits: `--seq max`."""

from __future__ import annotations

import bisect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from paceline.catalog.models.config import Config, read_config
from paceline.catalog.models.families import context_of
from paceline.catalog.models.spec import config_named
from paceline.errors import InvalidArgumentError
from paceline.forecast import remedies
from paceline.forecast.prepare import prepare
from paceline.forecast.remedies import Settings, Trial
from paceline.forecast.request import Named, Sweep
from paceline.forecast.typed import Typed
from paceline.forecast.verdict.remedy import attempt, tried

LONGEST = "max"
"""The value of `seq` that asks for it."""
STEP = 256
"""Tokens of which lengths are multiples: trainers pad to a power of two or to a multiple of 64 to 256."""
_SHORT = 1024
"""Tokens below which changes are proposed that lengthen a sequence."""
_MOST = 4
"""Changes that are made together so that longer sequences fit."""
_NOTABLE = 1.1
"""Times as long that a further change has to make them."""


@dataclass(frozen=True)
class Longest:
    """The longest sequence with which a job fits."""

    tokens: int
    """Of the longest with which it fits; 0: not even the shortest that was tried."""
    possible: int
    """Of the longest with which it may fit, as the interval of its memory leaves that open."""
    context: int
    """Tokens of the model's context, beyond which nothing was tried."""

    @property
    def tried(self) -> int:
        """The length to forecast."""
        return self.tokens or self.possible or min(STEP, self.context)

    @property
    def is_short(self) -> bool:
        """Whether it is so short that changes with which longer ones fit are worth their search."""
        return self.tokens < min(_SHORT, self.context)

    @property
    def words(self) -> str:
        """The first line of the answer."""
        of = "the whole context" if self.tried == self.context else f"of a context of {self.context:,}"
        if self.possible == 0:
            return f"Longest sequence: not even {self.tried} tokens fit"
        if self.tokens == 0:
            return f"Longest sequence: {self.possible:,} tokens, {of}, and even they may not fit"
        more = f"; up to {self.possible:,} may fit" if self.possible > self.tokens else ""
        return f"Longest sequence: {self.tokens:,} tokens, {of}{more}"


def asks(options: Mapping[str, Any]) -> bool:
    """Whether the longest sequence is asked for."""
    length = options.get("seq")
    return isinstance(length, str) and length.lower() == LONGEST


def longest(request: Callable[[int], Sweep]) -> Longest:
    """Return the longest sequence with which one configuration fits; `request`: with sequences of so many tokens.

    Raises InvalidArgumentError.
    """
    sweep = request(STEP)
    workload = sweep.workload(sweep.trace)
    if workload is None or not workload.is_text:
        raise InvalidArgumentError("max needs a model of text", setting="seq", remedy="drop {this}")
    if sweep.get("workers") is None:
        raise InvalidArgumentError("max needs the number of GPUs", setting="seq", remedy="{gpus=1}, or {this=4096}")
    if len(sweep.traces) > 1 or len(prepare(sweep).scenarios) > 1:
        raise InvalidArgumentError(
            "max is found for one configuration, and several are asked for",
            setting="seq",
            remedy="one value of each option, or {this=4096}",
        )
    context = context_of(_config(sweep.trace))

    def trial(tokens: int) -> Trial | None:
        return tried({"seq": tokens}, lambda: request(tokens))

    possible = _most(lambda tokens: may_fit(trial(tokens)), 0, context)
    return Longest(_most(lambda tokens: is_sure(trial(tokens)), 0, possible), possible, context)


def longer(typed: Typed, context: int) -> tuple[Trial, ...]:
    """Return changes with which longer sequences fit, the longest first.

    As many together as help, the fewest of these that suffice, and as many that take no memory of the host.

    Args:
        typed: The request.
        context: Tokens of the model's context.
    """
    sweep = typed.changed({"seq": STEP}).request()
    lacks = sweep.file.lacks if sweep.file is not None else {}
    families = remedies.families(prepare(sweep).scenarios[0], lacks=lacks).usual
    changes = [one[-1] for one in families if "batch" not in one[-1]]
    made = _lengthening(typed, changes, context)
    several = [*made[-1:], *made[:1]]
    if any("offload" in trial.settings for trial in several):
        several += _lengthening(typed, [one for one in changes if "offload" not in one], context)[-1:]
    every = {tuple(trial.settings.items()): trial for trial in several}.values()
    return tuple(sorted(every, key=lambda trial: -trial.seq))


def _lengthening(typed: Typed, changes: Sequence[Settings], context: int) -> list[Trial]:
    """Return changes with which sequences fit, each with one more than before: the one that lengthens them most."""
    made: list[Trial] = []
    best = Trial({}, False, 0, math.inf)

    def merit(trial: Trial) -> tuple[int, float]:
        # While not even the shortest fits, what needs least is nearest to it.
        return (trial.seq, _rate(trial)) if trial.seq else (0, -trial.shortage)

    for _ in range(_MOST):
        trials = [_lengthened(typed, {**best.settings, **change}, best, context) for change in changes]
        some = [trial for trial in trials if trial is not None]
        better = max(some, key=merit, default=best)
        if better.seq < _NOTABLE * best.seq or (better.seq == 0 and better.shortage >= best.shortage):
            break
        best = better
        made += [best] if best.seq else []
        changes = [change for change in changes if not change.items() <= best.settings.items()]
    return made


def _lengthened(typed: Typed, settings: Settings, best: Trial, context: int) -> Trial | None:
    """Return the trial of the longest sequence under other settings; None unless that is as long as the best's.

    Where not even the shortest fits, it is the trial of that.
    """
    trials: dict[int, Trial | None] = {}

    def fits(tokens: int) -> bool:
        trials[tokens] = attempt(typed.changed({"seq": tokens}), settings)
        return is_sure(trials[tokens])

    least = max(best.seq, min(STEP, context))
    if not fits(least):
        return None if best.seq else trials[least]
    most = _most(fits, least, context)
    trial = trials[most]
    return None if trial is None else replace(trial, seq=most)


def _rate(trial: Trial) -> float:
    return 0.0 if trial.result is None else trial.result.tokens_per_s_per_gpu or 0.0


def may_fit(trial: Trial | None) -> bool:
    """Whether a trial fits, if only perhaps."""
    return trial is not None and trial.fits


def is_sure(trial: Trial | None) -> bool:
    """Whether a trial fits with the certainty of a verdict that says so."""
    if trial is None or trial.result is None or trial.result.sharded is None:
        return False
    return trial.fits and not trial.result.sharded.may_not_fit


def _most(fits: Callable[[int], bool], least: int, most: int) -> int:
    """Return the most tokens that fit, a multiple of STEP or `most`, where `least` does; 0: none fit."""
    if most <= least or fits(most):
        return most
    lengths = range(least - least % STEP + STEP, most, STEP)
    fitting = bisect.bisect_left(lengths, True, key=lambda tokens: not fits(tokens))
    return lengths[fitting - 1] if fitting else least


def _config(named: Named) -> Config:
    if isinstance(named, Config):
        return named
    return read_config(named) if isinstance(named, Path) else config_named(str(named))
