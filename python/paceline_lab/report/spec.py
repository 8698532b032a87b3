"""A report's specification: TOML with chapters, each a sweep with the settings of `paceline simulate`."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paceline._internal.documents import read_small
from paceline._internal.files import unread
from paceline._internal.nearest import nearest
from paceline._internal.units import shown
from paceline.catalog.models.names import resolve
from paceline.catalog.models.spec import is_file, is_recorded, split_word
from paceline.catalog.strategies import find_strategy
from paceline.errors import InvalidArgumentError
from paceline.forecast import sharding
from paceline.forecast.prepare import Prepared, prepare
from paceline.forecast.remedies import has
from paceline.forecast.request import Sweep
from paceline.forecast.trainer_file import TrainerFile, is_candidate
from paceline.forecast.typed import Typed
from paceline.settings.table import of_place

from paceline_lab.explore.state import SHARDINGS

_MOST_BYTES = 1 << 20
_MOST_CHAPTERS = 20
# Fields of a chapter, in addition to the settings of a forecast.
_OWN = ("title", "text", "trace", "explain", "timeline")
_GPUS = (8, 16, 32, 64)
_TIMELINE = ("strategy", "workers")


@dataclass(frozen=True)
class Chapter:
    """A forecast to show. `shown`: strategy and workers of the run whose timeline is drawn; None if not given."""

    title: str
    text: str
    sweep: Sweep
    typed: Typed
    """The request as `paceline simulate` takes it."""
    file: TrainerFile | None
    """The trainer's file that it is of, described; None for other workloads."""
    prepared: Prepared
    explained: bool
    shown: tuple[str | None, int | None] | None


@dataclass(frozen=True)
class Spec:
    """A report."""

    title: str
    text: str
    chapters: tuple[Chapter, ...]


def read(path: Path) -> Spec:
    """Read and check everything that can be checked without simulating.

    Raises InvalidArgumentError naming file and field.
    """
    try:
        document = tomllib.loads(read_small(path, _MOST_BYTES))
    except OSError as error:
        raise unread(f"{path}", error, path) from None
    except (UnicodeDecodeError, tomllib.TOMLDecodeError, RecursionError) as error:
        raise InvalidArgumentError(
            f"{path}: is not TOML: {error}", remedy='[[chapter]] with trace = "resnet-50"'
        ) from None
    except ValueError:  # Python's limit on the digits of an integer
        raise InvalidArgumentError(
            f"{path}: is not TOML: a number has too many digits", remedy="a smaller number"
        ) from None
    _known(f"{path}", document, ("title", "text", "chapter"))
    chapters = document.get("chapter")
    if not isinstance(chapters, list) or not chapters or not all(isinstance(entry, dict) for entry in chapters):
        raise InvalidArgumentError(
            f"{path}: chapter: is missing", remedy='[[chapter]] with trace = "resnet-50" or a file'
        )
    if len(chapters) > _MOST_CHAPTERS:
        raise InvalidArgumentError(
            f"{path}: chapter: must be at most {_MOST_CHAPTERS}, not {len(chapters)}", remedy="fewer chapters"
        )
    made = tuple(_chapter(f"{path}: chapter {number}", entry) for number, entry in enumerate(chapters, start=1))
    return Spec(_text(str(path), document, "title") or path.stem, _text(str(path), document, "text"), made)


def of_trace(trace: str) -> Spec:
    """Return the report of a workload alone: every strategy on 2 to 64 workers, and what limits them.

    Of a model on GPUs, the shardings are compared, since its strategy is the library's.

    Of a trainer's file, its own sharding is among them, and those are left out that its trainer does not have.

    `trace` is a file or a model's name, as for `paceline simulate`; a recording, too, may have a GPU after @.
    """
    named, options = split_word(trace)
    entry: dict[str, Any] = {"trace": trace, "workers": [2, 4, 8, 16, 32, 64], "explain": True}
    file = None
    if set(options) == {"gpu"} and is_file(named) and not is_candidate(named) and resolve(named) is None:
        entry |= {"trace": named, "gpu": options["gpu"], "gpus": entry.pop("workers")}
    elif of_model := _of_model(trace):
        del entry["workers"]
        largest = of_model[max(of_model)]
        is_alone = largest.machine().gpus_per_node == 1
        shardings = [name for name in SHARDINGS if not (is_alone and sharding.in_groups(name))]
        if largest.file is not None:
            own, lacks = largest.file.options.get("sharding"), largest.file.lacks
            shardings = [name for name in shardings if name == own or has(lacks, {"sharding": name})]
            shardings += [own] if own is not None and own not in shardings else []
            file = largest.changed({"workers": list(of_model)}).described_file(shardings)
        entry |= {"gpus": list(of_model), "sharding": shardings, "strategy": ["native"]}
    title = Path(trace).stem if trace.endswith(".json") else Path(trace).name if "/" in trace else trace
    return Spec(title, "", (_chapter("report", {**entry, "title": "Scaling"}, file),))


def _of_model(trace: str) -> dict[int, Sweep]:
    """Return the requests of a model by the numbers of GPUs to compare; none for a recording.

    Of a trainer's file, those that its global batch and degrees divide. Raises InvalidArgumentError for a model without
    GPUs, and for a file that fits none of them.
    """
    named, options = split_word(trace)
    if not options and not is_recorded(named) and (config := resolve(named)) is not None:
        raise InvalidArgumentError(f"{config.name} needs a GPU type", remedy=f"{trace}@h100 (list: paceline list gpus)")
    suitable: dict[int, Sweep] = {}
    unsuitable: list[InvalidArgumentError] = []
    for count in _GPUS:
        try:
            if suitable:
                sweep = next(iter(suitable.values())).changed({"workers": [count]})
            else:
                sweep = Sweep.of(trace, {"gpus": [count]}, "report", "key")
            assert sweep.workers
        except InvalidArgumentError as error:
            unsuitable.append(error)
        else:
            suitable[count] = sweep
    if not suitable:
        raise unsuitable[0]
    sweep = next(iter(suitable.values()))
    try:
        return {} if sweep.workload(sweep.trace) is None else suitable
    except InvalidArgumentError as error:
        if sweep.file is None or sweep.get("gpu") is not None:
            raise
        raise InvalidArgumentError(error.reason, remedy=f"{trace}@h100 (list: paceline list gpus)") from None


def _chapter(where: str, entry: Mapping[str, Any], file: TrainerFile | None = None) -> Chapter:
    """Check a chapter. `file`: its trainer's file, if it is described already. Raises InvalidArgumentError."""
    settings = [name for setting in of_place("report") for name in (setting.name, setting.also) if name]
    _known(where, entry, (*_OWN, *settings))
    trace = _text(where, entry, "trace")
    if not trace:
        raise InvalidArgumentError(f"{where}: trace: is missing", remedy='trace = "resnet-50" (or a file)')
    explained = entry.get("explain", False)
    if not isinstance(explained, bool):
        raise InvalidArgumentError(
            f"{where}: explain: must be true or false, not {shown(explained, repr)}", remedy="explain = true"
        )
    given = {name: value for name, value in entry.items() if name in settings}
    try:
        sweep = Sweep.of(trace, given, "report", "key", where=where)
        prepared = prepare(sweep)
        file = file or sweep.described_file()
    except InvalidArgumentError as error:
        if error.source is None:
            error.within(where)
        raise
    return Chapter(
        title=_text(where, entry, "title") or trace,
        text=_text(where, entry, "text"),
        sweep=sweep,
        typed=Typed.of("simulate", trace, given, "key"),
        prepared=prepared,
        file=file,
        explained=explained,
        shown=_shown(where, entry.get("timeline", {})),
    )


def _shown(where: str, value: object) -> tuple[str | None, int | None] | None:
    """Return the run whose timeline is drawn; None for `timeline = false`."""
    if value is False:
        return None
    if not isinstance(value, dict):
        raise InvalidArgumentError(
            f"{where}: timeline: must be false or a run", remedy='timeline = { strategy = "ring", workers = 8 }'
        )
    _known(f"{where}: timeline", value, _TIMELINE)
    strategy, workers = value.get("strategy"), value.get("workers")
    if strategy is not None and not isinstance(strategy, str):
        raise InvalidArgumentError(
            f"{where}: timeline: strategy: {shown(strategy, repr)} is not a name", remedy='strategy = "ring"'
        )
    if strategy is not None:
        try:
            find_strategy(strategy)
        except InvalidArgumentError as error:
            raise error.within(f"{where}: timeline: strategy") from None
    if workers is not None and (not isinstance(workers, int) or isinstance(workers, bool)):
        raise InvalidArgumentError(
            f"{where}: timeline: workers: {shown(workers, repr)} is not a number", remedy="workers = 8"
        )
    return strategy, workers


def _text(where: str, entry: Mapping[str, Any], name: str) -> str:
    value = entry.get(name, "")
    if not isinstance(value, str):
        raise InvalidArgumentError(f"{where}: {name}: {shown(value, repr)} is not text", remedy=f'{name} = "…"')
    return value


def _known(where: str, entry: Mapping[str, Any], names: tuple[str, ...]) -> None:
    for name in entry:
        if name not in names:
            near = nearest(name, list(names))
            hint = near or f"one of {', '.join(names)}"
            raise InvalidArgumentError(f"{where}: unknown field '{name[:80]}'", remedy=hint)
