"""A trainer's file in the place of a workload: its options join those that were given, which win."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from paceline._internal import units
from paceline._internal.files import check_readable
from paceline.catalog.models.config import Config
from paceline.catalog.models.names import of_script
from paceline.catalog.models.traits import TRANSFORMER_ENGINE
from paceline.catalog.offload import PARAMETERS
from paceline.catalog.recipes import COMPUTED
from paceline.errors import InvalidArgumentError, Source
from paceline.forecast import sharding
from paceline.settings.kinds import NONE
from paceline.settings.table import EACH, SETTINGS, SWEPT

if TYPE_CHECKING:
    from paceline.interop.trainers import Document
    from paceline.interop.trainers.reading import Assumption, Reading, Row

Workload = str | Path | Config
_FREE = {"advise": ("sharding", "reshard_after_forward", "checkpointing", "batch", "accumulate", "microbatches")}
"""Settings that a command searches, whatever the file says of them."""
_UNSAID = {"seq": "sequences as long as the model's, at most 8,192 tokens", "batch": "a batch of 1 per GPU"}
"""Assumptions where neither the file nor an option says it, by setting."""
_BESIDE_ADAPTERS = ("dora", "lora_dropout", "quantize", "modules_to_save")
_OF_WHOLE_MODELS = ("bf16", "mixed", "amp-bf16", "amp-fp16")
"""Recipes of files without adapters, which are in FP32 beside what is frozen."""
_OF_OPTIMIZER = ("optimizer_impl", "moment_dtype")
_OF_GATHERED = ("reshard_after_forward", "prefetch", "unit", "param_dtype", "reduce_dtype")


@dataclass(frozen=True)
class TrainerFile:
    """A trainer's file after its options were taken."""

    document: Document
    trainer: str
    all_rows: Callable[[], Iterable[Row]]
    """Makes `rows`."""
    assumptions: tuple[Assumption, ...]
    options: Mapping[str, Any]
    """Values by setting, also of settings that the command searches."""
    given: Given
    """Settings that were given beside it, before its options joined."""
    gpu: str = ""
    """That of `FILE@GPU`."""
    model: str = ""
    """The model that was given beside it."""
    warnings: tuple[str, ...] = ()
    """About fields that are not modeled and without which the answer is another one."""
    lacks: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Values by setting that the trainer, or what shards under it, does not have; empty: all but the default."""

    @property
    def path(self) -> Path:
        """The file."""
        return self.document.path

    @cached_property
    def rows(self) -> tuple[Row, ...]:
        """Its fields, with what becomes of each."""
        return tuple(self.all_rows())

    def under(self, values: Mapping[str, Any]) -> tuple[Workload, TrainerFile, Given]:
        """Read the file's fields again, with other values given beside it.

        Args:
            values: Checked values by setting; None: not given.

        Returns:
            The model, what became of the file's fields, and what was given with the file's options.

        Raises:
            InvalidArgumentError: The values contradict the file.
        """
        given = self.given.changed(values)
        merged = merge(self.document, self.gpu, given)
        assert merged is not None  # it was read before
        return *merged, given

    def global_batch(self, workers: int, values: Mapping[str, Any]) -> int | None:
        """Return the samples of an iteration on so many GPUs; None if the file does not say the batch.

        `values`: of parallel degrees, where they are not the file's.
        """

        def of(name: str) -> int:
            degree = values.get(name, self.options.get(name, 1))
            return int(degree[0] if isinstance(degree, list) else degree)

        if "batch" not in self.options:
            return None
        shared = of("tensor_parallel") * of("pipeline_parallel") * of("context_parallel")
        passes = int(self.options.get("microbatches", self.options.get("accumulate", 1)))
        return int(self.options["batch"]) * passes * max(1, workers // shared)

    def described(self, values: Mapping[str, Any], others: Mapping[str, Mapping[str, Any]], words: str) -> TrainerFile:
        """Return the file with an assumption for each option that it gives under a condition, and not otherwise.

        Args:
            values: All options, under the first condition, or the file's.
            others: All options under other conditions, by these.
            words: A condition's words (`under {}`).
        """
        from paceline.interop.trainers.reading import Assumption

        conditions: dict[str, list[str]] = {}
        for condition, own in others.items():
            names = [one for one in dict.fromkeys([*own, *values]) if one not in ("sharding", "workers")]
            for one in (one for one in names if own.get(one) != values.get(one)):
                option = SETTINGS[one].source(self.given.given_by, own.get(one, values.get(one))).name
                difference = f"no {option}" if one not in own else f"{option} {own[one]}"
                conditions.setdefault(difference, []).append(condition)
        made = [Assumption(f"{words.format(units.listed(names))}: {one}") for one, names in conditions.items()]
        return replace(self, assumptions=(*self.assumptions, *made))

    @property
    def left_out(self) -> str:
        """The fields that are not modeled or not understood, in a sentence; empty if there are none."""
        kinds = {"not forecast": "not modeled", "not understood": "not understood"}
        parts = [
            f"{label}: {', '.join(names)}"
            for fate, label in kinds.items()
            if (names := [row.field for row in self.rows if row.fate == fate])
        ]
        return f"{self.path.name}: {'; '.join(parts)}" if parts else ""

    @property
    def slips(self) -> list[str]:
        """Fields that may be a slip, each with what may be meant, those without a value, and warnings."""
        from paceline.interop.trainers.reading import VARIABLE

        slips = [
            f"{self.path.name}: {row.field} is not understood, and has no effect: {row.words}"
            for row in self.rows
            if row.fate == "not understood" and row.words
        ]
        unset = [f"{row.field} {row.value}" for row in self.rows if row.words == VARIABLE]
        if unset:
            slips.append(f"{self.path.name}: has no values of {', '.join(unset)}: give options, or set the variables")
        return [*slips, *(f"{self.path.name}: {one}" for one in self.warnings)]

    def to_dict(self) -> dict[str, Any]:
        """Return it as `--json` prints it."""

        def of(*fates: str) -> list[dict[str, str]]:
            return [
                {"field": row.field, "value": row.value, "meaning": row.words} for row in self.rows if row.fate in fates
            ]

        return {
            "file": str(self.path),
            "trainer": self.trainer,
            "read": of("read"),
            "assumed": [{"assumption": one.words, "remedy": one.remedy} for one in self.assumptions],
            "no_effect": of("no effect"),
            "not_forecast": of("not forecast"),
            "not_understood": of("not understood"),
        }


@dataclass(frozen=True)
class Given:
    """Values that a command or function was given, checked, to which a file's are added."""

    place: str
    """The command or function, as the table of settings calls it."""
    given_by: Literal["flag", "keyword", "key"]
    """How the caller spells settings."""
    values: dict[str, Any]
    each: dict[str, list[Any]]
    """Several values that change traces or clusters, by setting."""
    sources: dict[str, Source]

    def changed(self, values: Mapping[str, Any]) -> Given:
        """Return it with other values; None: not given."""
        own = {name: value for name, value in {**self.values, **values}.items() if value is not None}
        each = {name: several for name, several in self.each.items() if name not in values}
        return replace(self, values=own, each=each, sources=dict(self.sources))


def find(workloads: Sequence[object]) -> tuple[Path, str] | None:
    """Return the trainer's file among workloads, and the GPU of `FILE@GPU`, else none; None if there is no file.

    Raises InvalidArgumentError for several workloads.
    """
    words = [_divided(one) for one in workloads if isinstance(one, str | Path)]
    files = [(Path(name), gpu) for name, gpu in words if is_candidate(name)]
    if not files:
        return None
    if len(workloads) > 1:
        raise InvalidArgumentError(
            f"{files[0][0]!s:.200} has options of its own, and there are {len(workloads)} workloads",
            remedy=f"paceline simulate {files[0][0]!s:.80}",
        )
    return files[0]


def unknown(path: Path) -> InvalidArgumentError:
    """Return the error about a file that no known trainer reads."""
    from paceline.interop import trainers

    return trainers.unknown(path)


def check_there(workloads: Sequence[object]) -> None:
    """Refuse scripts in Python, and paths with a trainer's suffix that are not there. Raises InvalidArgumentError."""
    for word in workloads:
        if isinstance(word, str | Path) and Path(name := str(word).partition("@")[0]).suffix.lower() == ".py":
            if not Path(name).exists():
                check_readable(Path(name))
            raise of_script(Path(name))
        if isinstance(word, str | Path) and Path(name := _divided(word)[0]).suffix.lower() in _SUFFIXES:
            check_readable(Path(name))


def _divided(word: str | Path) -> tuple[str, str]:
    """Return a file and the GPU after @, if there is one."""
    name, at, gpu = str(word).rpartition("@")
    return (name, gpu) if at and "/" not in gpu and Path(name).suffix.lower() in _SUFFIXES else (str(word), "")


def is_candidate(word: str | Path) -> bool:
    """Return whether a word names a file that may be a trainer's, with or without a GPU after @."""
    name, _ = _divided(word)
    if Path(name).suffix.lower() not in _SUFFIXES:
        return False
    from paceline.interop import trainers

    return trainers.is_candidate(Path(name))


_SUFFIXES = (".json", ".yaml", ".yml", ".toml", ".conf", ".sh", ".bash", ".slurm", ".sbatch", ".args")


def merge(file: Path | Document, gpu: str, given: Given) -> tuple[Workload, TrainerFile] | None:
    """Read a trainer's file; add its options to what was given. None for a JSON document of another kind.

    Args:
        file: The file, or its values.
        gpu: The GPU of `FILE@GPU`; empty if there is none.
        given: What was given, which wins; the file's values are added.

    Returns:
        The model, and what became of the file's fields.

    Raises:
        InvalidArgumentError: A field is wrong, the file is of no known trainer, or names no model that is known.
    """
    from paceline.interop import trainers
    from paceline.interop.trainers.reading import Assumption

    document = trainers.Document.of(file) if isinstance(file, Path) else file
    path, before = document.path, given.changed({})
    if gpu and given.values.setdefault("gpu", gpu) != gpu:
        raise InvalidArgumentError(f"{path.name}@{gpu:.80} says the GPU, too", setting="gpu", remedy="drop {gpu}")
    known = {**given.values, **given.each}
    reading = trainers.read(document, known)
    if reading is None:
        if path.suffix.lower() == ".json":
            return None
        raise trainers.unknown(path)
    named = str(given.values.get("model", ""))
    model = _model(reading, given)
    _drop_contradicted(reading, known)
    for name, value in list(reading.options.items()):
        _take(reading, name, value, given)
    if "workers" not in given.values:
        raise InvalidArgumentError(f"{path!s:.200}: does not say the number of GPUs", remedy="{gpus=8}")

    def spelled(setting: str, value: object) -> str:
        own = SETTINGS[setting].spelling(value) if setting in SETTINGS else f"--{setting.replace('_', '-')}"
        flag = own or setting
        flag = f"--{SETTINGS[setting].also}" if setting in SETTINGS and SETTINGS[setting].also else flag
        return flag if value is True else f"{flag} {value}"

    assumed = [
        Assumption(words, f"{SETTINGS[name].source(given.given_by).name} N")
        for name, words in _UNSAID.items()
        if not {name} & {*given.values, *given.each, *_FREE.get(given.place, ())}
    ]
    assumptions = (*reading.assumptions, *assumed)
    options, lacks = dict(reading.options), reading.lacks
    rows = partial(reading.rows, spelled)
    name, warnings = reading.trainer.name, tuple(reading.warnings)
    return model, TrainerFile(document, name, rows, assumptions, options, before, gpu, named, warnings, lacks)


def _model(reading: Reading, given: Given) -> Workload:
    """Return the model that was given, else the file's. Raises InvalidArgumentError if there is none."""
    named = given.values.pop("model", None)
    if named is not None:
        return str(named)
    if reading.model is None:
        remedy = f"{{model={reading.likely_model or 'llama-3.1-8b'}}}"
        for field in reading.model_fields:
            reading.check_set(field, remedy)
        raise InvalidArgumentError(f"{reading.path!s:.200}: does not name the model", remedy=remedy)
    config = reading.config
    if config is None:
        field = reading.label(reading.model_fields[0]) if reading.model_fields else "the model"
        raise InvalidArgumentError(
            f"{reading.path!s:.200}: {field}: '{reading.model!s:.80}' is no built-in model, nor in the local cache",
            remedy="{model=NAME} (list: paceline list models), or {model} with its config.json",
        )
    return config


def _drop_contradicted(reading: Reading, given: Mapping[str, Any]) -> None:
    """Drop options of the file that what was given makes meaningless."""
    computed = COMPUTED.get(str(reading.options.get("precision")), ())
    if any(dtype not in computed for dtype in _listed(given.get("dtype", list(computed)))):
        reading.drop("precision")
    if "precision" in given:
        reading.drop("dtype")
    own = reading.options.get("precision") if "precision" in reading.fields_of else None
    if own == "o2" and reading.effective("dtype") in ("fp32", "tf32"):
        # Of a file of DeepSpeed's that is not there, only the stage is known: its types are the trainer's (`auto`).
        reading.forget("precision")
    if given.get("lora") == NONE:
        for name in _BESIDE_ADAPTERS:
            reading.drop(name)
    elif "lora" in given and "lora" not in reading.options and reading.options.get("precision") in _OF_WHOLE_MODELS:
        reading.drop("precision")
    if given.get("optimizer", reading.options.get("optimizer")) != reading.options.get("optimizer"):
        for name in _OF_OPTIMIZER:
            reading.drop(name)
    if _listed(given.get("expert_parallel", [2]))[0] == 1:
        reading.drop("expert_dispatch")
    if given.get("kernels") == TRANSFORMER_ENGINE:
        reading.drop("loss_chunks")
    if "sharding" in given:
        kinds = [sharding.kind(str(one)) for one in _listed(given["sharding"])]
        if not all(one in sharding.GATHERED for one in kinds):
            for name in _OF_GATHERED:
                reading.drop(name)
            if reading.options.get("precision") == "fsdp-mixed":
                reading.drop("precision")
            target, _, parts = str(reading.options.get("offload", "")).partition(":")
            if PARAMETERS in parts:
                left = [part for part in parts.split(",") if part != PARAMETERS]
                if left:
                    reading.options |= {"offload": f"{target}:{','.join(left)}"}
                else:
                    reading.drop("offload")
        if any(one in (*sharding.GATHERED, "none") for one in kinds):
            reading.drop("bucket_size")
    if _listed(given.get("pipeline_parallel", [2]))[0] == 1:
        reading.drop("microbatches")
        reading.drop("virtual_stages")
    if "cluster" in given:
        reading.drop("gpus_per_node")


def _listed(value: object) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _take(reading: Reading, name: str, value: object, given: Given) -> None:
    place, values = given.place, given.values
    fields = reading.fields_of.get(name, ())
    setting = SETTINGS.get(name)
    if name in values or name in given.each or name in _FREE.get(place, ()):
        return
    if setting is None or place not in setting.uses or not _is_known(name, value, place):
        for field in fields:
            others = [one for one, names in reading.fields_of.items() if field in names and one != name]
            if not others:
                reading.leave(field, f"not yet an option of {place}: {name.replace('_', ' ')} {value}")
        reading.forget(name)
        return
    own = setting.source(given.given_by, value)
    where, of_file = f"{reading.path!s:.200}", ""
    if fields:
        field = reading.label(fields[0])
        where, of_file = f"{where}: {field}", f"{field} in {reading.path.name:.80}"
    also = f"--{setting.also}" if own.kind == "flag" and setting.also else own.name
    source = Source(own.kind, also, where, of_file, tuple(_words_of(reading, fields)))
    try:
        checked = setting.check(value, source, place)
    except InvalidArgumentError as error:
        raise error.at(name, source) from None
    if name in EACH and setting.kind_of(place).is_list:
        checked = checked[0]
    values[name] = [checked] if name in SWEPT and not setting.kind_of(place).is_list else checked
    given.sources[name] = source


def _words_of(reading: Reading, fields: Sequence[str]) -> Iterable[tuple[str, str]]:
    """Yield the words of fields that give one option, each with its place."""
    for name in fields if len(fields) > 1 else ():
        value = reading.values.get(name)
        for one in value if isinstance(value, list) else str(value).split(","):
            yield str(one).strip()[:80], f"{reading.path!s:.200}: {reading.label(name)}"


def _is_known(name: str, value: object, place: str) -> bool:
    """Whether the option has a value that a trainer's has: its list of optimizers or losses may be longer."""
    kind = SETTINGS[name].kind_of(place)
    if name not in ("optimizer", "loss"):
        return True
    try:
        kind.check(value)
    except InvalidArgumentError:
        return False
    return True
