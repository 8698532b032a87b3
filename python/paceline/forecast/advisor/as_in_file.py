"""The forecast of a trainer's file as it is, beside the best of what `advise` searched, on the same GPUs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from paceline._internal import units
from paceline._internal.block import Fact, block
from paceline.errors import InvalidArgumentError
from paceline.forecast.advisor.answer import Answer
from paceline.forecast.prepare import prepare
from paceline.forecast.request import Sweep
from paceline.forecast.result import Result
from paceline.forecast.run import result_of
from paceline.forecast.trainer_file import TrainerFile
from paceline.forecast.wording import sharding
from paceline.settings.table import SETTINGS, SIMULATE


@dataclass(frozen=True)
class AsInFile:
    """A file's own configuration."""

    result: Result | None
    where: str
    """The GPUs: `16x B300`."""
    gpus: int
    batch: int | None
    problem: str = ""
    """Why it cannot be forecast."""

    @property
    def fits(self) -> bool:
        """Whether it fits in the memory of the GPUs, as far as that is known."""
        sharded = None if self.result is None else self.result.sharded
        return self.result is not None and (sharded is None or sharded.fits is not False)

    def to_dict(self) -> dict[str, Any]:
        """Return it as `--json` prints it."""
        if self.result is None:
            return {"where": self.where, "gpus": self.gpus, "problem": self.problem}
        return {
            "where": self.where,
            "gpus": self.gpus,
            "batch": self.batch,
            "iteration_s": self.result.iteration_s,
            "samples_per_s": self.result.samples_per_s,
            "tokens_per_s_per_gpu": self.result.tokens_per_s_per_gpu,
            "fits": self.fits,
        }

    def lines(self, answer: Answer | None) -> list[str]:
        """Return what the file's own configuration comes to, beside the best of an answer for its GPUs."""
        if self.result is None:
            return block([Fact("As in file", f"on {self.where}, cannot be forecast: {self.problem}")])
        rate = self.result.tokens_per_s_per_gpu
        own = f"{self.where}, batch {self.batch or 1}"
        if not self.fits:
            need = "" if self.result.sharded is None else f", {sharding.need(self.result.sharded)}"
            return block([Fact("As in file", f"{own}: does not fit{need}")])
        shown = "" if rate is None else f", {units.digits(rate)} tokens/s per GPU"
        return block([Fact("As in file", f"{own}{shown}{self._beside(answer)}")])

    def _beside(self, answer: Answer | None) -> str:
        rows = [] if answer is None else answer.rows.get(self.gpus, [])
        assert self.result is not None
        if not rows or not self.result.samples_per_s:
            return ""
        times = rows[0].option.result.samples_per_s
        if times is None or times <= self.result.samples_per_s * 1.005:
            return "; nothing that was searched is faster"
        return f"; batch {rows[0].candidate.batch} as above is {times / self.result.samples_per_s:.2f}x as fast"


def forecast(file: TrainerFile, machine: Sweep, gpus: int, where: str, given: Mapping[str, object]) -> AsInFile:
    """Forecast a file's configuration.

    Args:
        file: The file.
        machine: The request of `advise` for one machine.
        gpus: How many.
        where: The GPUs, for people.
        given: Options as typed; None where they were not.
    """
    values = {
        name: _first(machine.values[name])
        for name, value in given.items()
        if value is not None and name in machine.values and SIMULATE in SETTINGS[name].uses
    }
    values |= {"workers": gpus, **({"model": file.model} if file.model else {})}
    try:
        sweep = Sweep.of(file.path, values, SIMULATE, one_strategy=True)
        return AsInFile(result_of(prepare(sweep).scenarios[0]), where, gpus, sweep.get("batch"))
    except InvalidArgumentError as error:
        return AsInFile(None, where, gpus, None, str(error))


def _first(value: Any) -> Any:  # noqa: ANN401 - the value of any setting
    return value[0] if isinstance(value, list) else value
