"""A trainer's file as options of a forecast, and what becomes of each of its fields.

A trainer's module has tables of fields and a function that derives what depends on several of them. A field is read,
has no effect on a forecast, is not forecast, or is not understood; nothing is left out in silence.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from fnmatch import fnmatchcase
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from paceline._internal.nearest import nearest
from paceline._internal.units import binary_count, spelled_count
from paceline.catalog.models.config import Config
from paceline.catalog.models.heads import architecture_of
from paceline.errors import InvalidArgumentError
from paceline.interop.trainers import fields, shell
from paceline.interop.trainers.document import TWICE, Value, Values
from paceline.interop.trainers.models import found_config, same_sizes

Fate = Literal["read", "no effect", "not forecast", "not understood"]
_MOST = 1 << 31
_MODEL = "model"
_WHOLE = re.compile(r"-?[0-9]+(?:_[0-9]+)*")
"""Text that Python's `int` takes."""
VARIABLE = "a variable that the file does not set"
_REFERENCE = re.compile(r"\$\{?([A-Za-z_]\w*)")
_NO_VALUE = "has no value"
NO_FILE = "there is no such file"
AUTO = "auto"
"""The value that leaves a choice to the trainer."""
_TIMES = 8
"""A remedy has at most so many times as many GPUs."""
_SLIP, _LETTERS = 0.85, 2
"""How alike a misspelling is to a name (difflib's ratio), and the letters by which it is longer or shorter at most."""
_TELLING = frozenset(
    ("load", "mcore-model", "mcore_model", "pretrained-checkpoint", "tokenizer-model", "tokenizer-name-or-path")
)
"""Fields whose value may have the model's name."""
_EMPTY: tuple[Value, ...] = (None, "", [])
"""Values of a field that says nothing."""


@dataclass(frozen=True)
class Row:
    """A field of the file."""

    field: str
    value: str
    fate: Fate
    words: str
    """The options that it gives, or why it gives none."""
    options: tuple[str, ...] = ()
    """The settings that it gives."""


@dataclass(frozen=True)
class Assumption:
    """A value that the file does not have, and the option that gives it."""

    words: str
    remedy: str = ""
    settings: tuple[str, ...] = ()
    """The options that the trainer's default gives."""


@dataclass(frozen=True)
class Direct:
    """A field that is an option: its setting, and the values that differ from the option's."""

    setting: str
    values: Mapping[Any, object] | None = None
    """None: a whole number. Others are not understood."""
    unless: object = None
    """The value that is the option's default."""


@dataclass(frozen=True)
class Trainer:
    """A trainer and its fields."""

    name: str
    recognizes: Callable[[Values], bool]
    derive: Callable[[Reading], None]
    """Derives what depends on several fields."""
    direct: Mapping[str, Direct] = field(default_factory=dict)
    tables: tuple[str, ...] = ()
    """Of `fields.json`, in which the fields are that give no option."""
    prefix: str = ""
    """That of all fields: `--` of arguments."""
    lacks: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Values by setting that the trainer does not have, so that no remedy proposes them; empty: all but the default."""
    translate: Callable[[Values], tuple[Values, dict[str, str]]] | None = None
    """Returns the values by the names that the tables have, and the file's name of each."""


class Reading:
    """A trainer's file while it is read."""

    def __init__(
        self,
        trainer: Trainer,
        path: Path,
        values: Values,
        given: Mapping[str, Any],
        labels: Mapping[str, str] | None = None,
        *,
        winner: str = "overridden",
    ) -> None:
        """Prepare the reading.

        `given`: checked values of settings that win over the file's; `labels`: names of values as their file has them,
        where these differ; `winner`: how rows call that a given value wins.
        """
        self.winner = winner
        self.trainer, self.path, self.given = trainer, path, given
        self.labels: dict[str, str] = {}
        """The file's names of fields that a trainer's tables call otherwise."""
        self.values: Values = dict(values)
        names = labels or {}
        if trainer.translate is not None:
            self.values, translated = trainer.translate(values)
            self.labels = {name: names.get(own, own) for name, own in translated.items()}
        self.labels |= {name: own for name, own in names.items() if name in self.values and name not in self.labels}
        twice = self.values.pop(TWICE, None)
        branches = self.values.pop(shell.OPEN, None)
        self.program = str(self.values.pop(shell.PROGRAM, ""))
        """The script or subcommand that gets a script's arguments: `trl dpo`; empty if none is named."""
        self._stand_ins: dict[str, str] = {}
        """Fields that another one says, by their name."""
        self._replaced: dict[str, tuple[str, Value]] = {}
        """The label and the empty value of those that the file has, too."""
        self.options: dict[str, Any] = {}
        """Values by setting, as text or numbers; those in `given`, too."""
        self.fields_of: dict[str, tuple[str, ...]] = {}
        """The fields that a setting comes from."""
        self._assumptions: dict[str, Assumption] = {}
        for name in twice or ():
            self.assume(f"the last value of {name:.80}, which is there twice")
        if branches:
            variables = ", ".join(f"${one}" for one in branches)[:80]
            self.assume(f"the last of the branches that depend on {variables}, which the script leaves open")
        self.model: str | Config | None = None
        """The model by its name, or by its sizes; None if the file says neither."""
        self.model_fields: tuple[str, ...] = ()
        self.included: list[Reading] = []
        """Other files that this one names."""
        self._of_included: dict[str, Reading] = {}
        """Those that options come from."""
        self.yielding: set[str] = set()
        """Options that give way to those of the files that this one names."""
        self.winning: set[str] = set()
        """Options that the file which names this one says itself."""
        self._dropped: dict[str, Any] = {}
        """Values of options that what was given contradicts."""
        self._consulted: dict[str, str] = {}
        self._readable: set[str] = set()
        """Fields that this trainer's reader asks for."""
        self._named: set[str] = set()
        """Others of which it says what they do."""
        self._unforecast: dict[str, str] = {}
        self._idle: dict[str, str] = {}
        self.warnings: list[str] = []
        """About fields that are not modeled and without which the answer is another one."""
        self.lacks: dict[str, tuple[str, ...]] = dict(trainer.lacks)
        """The trainer's, and those of what shards under it."""

    def run(self) -> Reading:
        """Read all fields. Raises InvalidArgumentError, which names file and field."""
        for name, one in self.trainer.direct.items():
            self._direct(name, one)
        self.trainer.derive(self)
        return self

    def _direct(self, name: str, one: Direct) -> None:
        if one.values is None:
            self.take(one.setting, self.whole(name), name, unless=one.unless)
            return
        self.take(one.setting, self.choice(one.values, name), name, unless=one.unless)

    # Values, each with the check that its reader needs.

    def value(self, *names: str) -> Value:
        """Return the value of the first of these fields that has one; null, what is empty and `auto` count as none."""
        # Variables of scripts are no fields.
        self._readable.update(name for name in names if not name.isupper())
        for name in names:
            value = self.values.get(name)
            if name in self.values:
                self._consulted.setdefault(name, "")
            if isinstance(value, str) and "$" in value:
                self._unforecast[name] = VARIABLE
            elif value not in _EMPTY and value != AUTO:
                return value
        return None

    def whole(self, *names: str, least: int = 1) -> int | None:
        """Return a whole number. Raises InvalidArgumentError."""
        value, name = self.value(*names), self.present(*names)
        if value is None:
            return None
        if isinstance(value, str) and len(value) < 12 and _WHOLE.fullmatch(value.strip()):
            value = int(value)
        if isinstance(value, float) and value.is_integer() and abs(value) < _MOST:
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value < _MOST:
            problem = f"must be a whole number, at least {least}, not {_quoted(value)}"
            near = _near_whole(value, least)
            if near is None:
                raise self.refused(name, problem, f"a whole number for {self._own_label(name)}")
            raise self.wrong(name, problem, str(near))
        return value

    def number(self, *names: str) -> int | None:
        """Return a number of things, also as `5e8`. Raises InvalidArgumentError."""
        value, name = self.value(*names), self.present(*names)
        if isinstance(value, str):
            try:
                value = float(value[:40])
            except ValueError:
                value = -1.0
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float) or not 1 <= value < 1 << 50:
            raise self.wrong(name, f"must be a number, at least 1, not {_shown(self.values[name])}", "500000000")
        return int(value)

    def flag(self, *names: str, default: bool = False) -> bool:
        """Return whether a field is true. Raises InvalidArgumentError."""
        value, name = self.value(*names), self.present(*names)
        if value is None:
            return default
        if isinstance(value, str) and value.lower() in ("true", "false", "yes", "no", "1", "0"):
            value = value.lower() in ("true", "yes", "1")
        if value in (0, 1):
            return bool(value)
        raise self.wrong(name, f"must be true or false, not {_quoted(value)}", "true")

    def text(self, *names: str) -> str:
        """Return text; empty if there is none. Raises InvalidArgumentError for a list."""
        value, name = self.value(*names), self.present(*names)
        if value is None:
            return ""
        if isinstance(value, list):
            raise self.wrong(name, f"must be one word, not {_quoted(value)}", str(value[0]) if value else "a word")
        return str(value)

    def words(self, *names: str) -> list[str]:
        """Return a list of words; one that commas separate counts as a list. Raises InvalidArgumentError."""
        value, name = self.value(*names), self.present(*names)
        if value in (None, "", []):
            return []
        words = [str(one or "").strip() for one in (value if isinstance(value, list) else str(value).split(","))]
        if not all(map(_is_word, words)):
            rest = ", ".join(filter(_is_word, words))
            raise self.wrong(name, f"has an item that is no word: {_quoted(value)}", f"[{rest}]")
        return words

    def choice(self, values: Mapping[Any, object], *names: str) -> Any:  # noqa: ANN401 - a value of the mapping
        """Return what a value stands for; None if there is none. Raises InvalidArgumentError for other values."""
        value, name = self.value(*names), self.present(*names)
        if value is None:
            return None
        key = value.lower() if isinstance(value, str) else value
        if isinstance(key, list) or key not in values:
            known = [_shown(one) for one in values if one != ""]
            near = nearest(str(value), known) or known[0]
            raise self.wrong(name, f"{_quoted(value)} is not known", f"{near} (one of {', '.join(known)})")
        return values[key]

    def present(self, *names: str) -> str:
        """Return the first of these fields that the file has with a value; else the first."""
        return next(
            (one for one in names if self.values.get(one) not in (*_EMPTY, AUTO) and one not in self._unforecast),
            names[0],
        )

    def has(self, *patterns: str) -> bool:
        """Whether the file has a field of one of these patterns that is not empty."""
        return any(
            fnmatchcase(name, pattern) and value not in _EMPTY
            for name, value in self.values.items()
            for pattern in patterns
        )

    def _has(self, name: str) -> bool:
        return self.values.get(name) not in _EMPTY

    def wrong(self, name: str, problem: str, remedy: str) -> InvalidArgumentError:
        """Return an error about a field. `remedy`: another value of it."""
        return self.refused(name, problem, self._set(name, remedy))

    def refused(self, name: str, problem: str, remedy: str) -> InvalidArgumentError:
        """Return an error about a field. `remedy`: what to type instead, options in braces."""
        return InvalidArgumentError(f"{self.path!s:.200}: {self._own_label(name)}: {problem}", remedy=remedy)

    def _set(self, name: str, value: str) -> str:
        """Return a field with a value, as the file spells it."""
        label = self._own_label(name)
        return f"{label} {value}" if label.startswith("--") else f"{label.rpartition('.')[2]}: {value}"

    def _own_label(self, name: str) -> str:
        return self.label(name).removeprefix(f"{self.path.name}: ")

    def miss(self, name: str, word: str) -> None:
        """Record that the file is not there which a field names.

        Raises InvalidArgumentError unless the sharding, which such a file says first of all, is given.
        """
        if "sharding" not in self.given:
            raise missing_file(self.path, self.label(name), word, f"{{sharding={_sharding_of(word)}}}")
        self.leave(name, NO_FILE)

    def show_program(self) -> str:
        """Make the program a field, as something depends on it. Returns the field's name."""
        self.values.setdefault(shell.PROGRAM, self.program)
        return shell.PROGRAM

    def check_set(self, name: str, remedy: str) -> None:
        """Raise InvalidArgumentError, with a remedy, if a field's value is a variable that the file does not set."""
        value = _shown(self.values.get(name), 80)
        if "$" not in value:
            return
        variable = _REFERENCE.search(value)
        what = f"{value} is not known" if variable is None else f"the variable {variable[1]:.80} is not set"
        own = "" if variable is None else f"{variable[1]:.80}=VALUE in the file, or "
        raise self.refused(name, what, f"{own}{remedy}")

    def label(self, name: str) -> str:
        """Return the file's name of a field."""
        return self.labels.get(name, name)

    # The model.

    def name_model(self, word: str, *names: str) -> None:
        """Take the model's name. Empty: none, or a variable that the file does not set."""
        self.model, self.model_fields = word or None, tuple(filter(self._has, names))

    def build_model(self, kind: str, sizes: Mapping[str, Any], *names: str) -> None:
        """Take a model from its sizes: the built-in one of these, or one of its own."""
        causal = {"model_type": kind, "architectures": [architecture_of(kind, "ForCausalLM")]}
        config = Config(self.path.stem, str(self.path), {**causal, **sizes})
        self.model = same_sizes(config) or config
        self.model_fields = tuple(filter(self._has, names))
        self._named.update(names)

    @cached_property
    def config(self) -> Config | None:
        """The model that is forecast: the one given, else the file's; None if it is unknown."""
        word = self.given.get("model") or self.model
        return word if word is None or isinstance(word, Config) else found_config(word, self.path)

    @property
    def likely_model(self) -> str:
        """The model that the name of a checkpoint or a tokenizer tells; empty if none does."""
        words = (self.values.get(name) for name in self.values if self.label(name).lstrip("-") in _TELLING)
        configs = (found_config(word, self.path) for word in words if isinstance(word, str) and "$" not in word)
        return next((one.name for one in configs if one is not None), "")

    @property
    def blocks(self) -> int | None:
        """Layers of the model; None if it is unknown."""
        return None if self.config is None else self._size("num_hidden_layers", "n_layer")

    def liger_chunks(self) -> int | None:
        """Return the chunks of Liger's loss: tokens over the power of 2 that the wider vocabulary makes of them.

        liger_kernel/ops/fused_linear_cross_entropy.py (`fused_linear_cross_entropy_forward`).
        """
        vocabulary, hidden = self._size("vocab_size"), self._size("hidden_size", "n_embd")
        tokens = int(self.effective("batch", 1)) * int(
            self.effective("seq") or self._size("max_position_embeddings") or 0
        )
        if not (vocabulary and hidden and tokens):
            return 1
        times = -(-vocabulary // hidden)
        chunk = 1 << (-(-tokens // times) - 1).bit_length()
        return max(1, -(-tokens // chunk))

    def _size(self, *names: str) -> int | None:
        fields = {} if self.config is None else self.config.fields
        inner = fields.get("text_config")
        fields = {**fields, **inner} if isinstance(inner, Mapping) else fields
        return next((value for name in names if isinstance(value := fields.get(name), int)), None)

    # What becomes of the fields.

    def stand_in(self, name: str, value: Value, field_name: str) -> None:
        """Say in another field what one says, unless the file says that one, too."""
        if self._has(name):
            return
        if name in self.values:
            self._replaced[name] = (self.label(name), self.values[name])
        self.values[name] = value
        self.labels[name] = self.label(field_name)
        self._stand_ins[name] = field_name

    def take(self, setting: str, value: object, *names: str, unless: object = None) -> None:
        """Take an option from fields; None, or the default, is none."""
        self._named.update(names)
        if value is None or value == unless:
            return
        self.options[setting] = value
        self._of_included.pop(setting, None)
        own = list(filter(self._has, names))
        self.fields_of[setting] = tuple(dict.fromkeys(own))
        for name in own:
            self._consulted.setdefault(name, "")

    def take_default(self, setting: str, default: int, name: str, words: str) -> None:
        """Take a whole number from a field, or the trainer's default, which is an assumption."""
        value = self.whole(name)
        self.take(setting, value, name)
        if value is None:
            self.default(setting, default, words, f"--{setting.replace('_', '-')} N")

    def default(self, setting: str, value: object, words: str, remedy: str = "") -> None:
        """Take an option that no field of the file says: the trainer's default, which is an assumption."""
        if not self.source(setting):
            self.take(setting, value)
            self.assume(words, remedy, setting)

    def assume(self, words: str, remedy: str = "", *settings: str) -> None:
        """Record an assumption, once, with the options that it gives."""
        known = self._assumptions.get(words, Assumption(words, remedy))
        self._assumptions[words] = replace(known, settings=tuple(dict.fromkeys((*known.settings, *settings))))

    @property
    def assumptions(self) -> list[Assumption]:
        """Assumptions that hold: a default does not where a field, or what was given, says the option."""
        made = []
        for one in self._assumptions.values():
            left = tuple(name for name in one.settings if self.is_default(name))
            if left or not one.settings:
                made.append(replace(one, settings=left))
        return made

    def is_default(self, setting: str) -> bool:
        """Whether an option is the trainer's default: neither a field nor what was given says it."""
        return setting in self.options and not self.source(setting) and setting not in self.given

    def leave(self, name: str, why: str) -> None:
        """Record a field that changes time or memory and that no option says."""
        if name in self.values:
            self._unforecast[name] = why

    def idle(self, name: str, why: str) -> None:
        """Record a field without effect."""
        self._idle[name] = why

    def known(self, name: str, words: str) -> None:
        """Record a field that gives no option because it says what holds anyway."""
        self._named.add(name)
        if name in self.values:
            self._consulted[name] = words

    def effective(self, setting: str, default: Any = None) -> Any:  # noqa: ANN401 - the value of any setting
        """Return the value given for a setting, else the file's; the first of several."""
        value = self.given.get(setting, self.options.get(setting))
        if isinstance(value, list):
            value = value[0] if value else None
        return default if value is None else value

    def degree(self, setting: str) -> int:
        """Return a parallel degree, 1 by default."""
        return int(self.effective(setting, 1))

    @property
    def gpus(self) -> int | None:
        """GPUs of the job; None if nothing says."""
        value = self.effective("workers")
        return None if value is None else int(value)

    @property
    def replicas(self) -> int | None:
        """Groups of GPUs that each have samples of their own; None if nothing says."""
        shared = self.degree("tensor_parallel") * self.degree("pipeline_parallel") * self.degree("context_parallel")
        if self.gpus is None:
            return None
        return max(1, self.gpus // shared)

    def dividing_gpus(self, total: int | None) -> str:
        """Return, as a remedy, the numbers of GPUs nearest to the job's which its degrees and a global batch divide.

        `total`: samples of the global batch; None: any. Empty if there are none.
        """
        shared = self.degree("tensor_parallel") * self.degree("pipeline_parallel") * self.degree("context_parallel")
        replicas, batch = max(1, (self.gpus or 1) // shared), int(self.effective("batch", 1))
        counts = {replicas, replicas + 1}
        if total is not None:
            whole = 0 if total % batch else total // batch
            low = [one for one in range(1, math.isqrt(whole) + 1) if whole % one == 0]
            counts = {*low, *(whole // one for one in low)}
        below = [shared * one for one in counts if shared * one <= (self.gpus or 1)]
        above = [shared * one for one in counts if 1 < shared * one / (self.gpus or 1) <= _TIMES]
        return " or ".join(f"{{gpus={one}}}" for one in (*sorted(below)[-1:], *sorted(above)[:1]))

    def passes(self, count: int | None, *names: str) -> None:
        """Take the forward and backward passes of an iteration: microbatches of a pipeline, else accumulation."""
        if (stages := self.degree("pipeline_parallel")) > 1:
            self.take("microbatches", count, *names)
            if count is None:
                words = f"{4 * stages} microbatches, four a stage"
                self.default("microbatches", 4 * stages, words, "--microbatches N")
        else:
            self.take("accumulate", count, *names, unless=1)

    def passes_of_global(self, field_name: str, total: int | None, *names: str) -> None:
        """Take the passes that make a global batch on the GPUs. Raises InvalidArgumentError if they are not whole."""
        if total is None:
            return
        batch = int(self.effective("batch", 1))
        if self.replicas is None:
            return
        each = batch * self.replicas
        if total % each and VARIABLE in self._unforecast.values():
            # A degree may be what is open.
            self.assume(
                "one pass, as variables are open on which the passes of a global batch depend", "--accumulate N"
            )
            return
        if total % each:
            near = max(1, round(total / each)) * each
            problem = (
                f"{total} samples are not a multiple of {each}, those of {self.replicas} data-parallel ranks at a time"
            )
            remedies = [
                f"{self._set(field_name, str(near))} in the file",
                self.dividing_gpus(total) or "another {batch}",
            ]
            # What was typed is first.
            remedies.sort(key=lambda one: "gpus" not in one or "workers" not in self.given)
            raise self.refused(field_name, problem, ", or ".join(remedies))
        self.passes(total // each, field_name, *names)

    def include(self, trainer: Trainer, path: Path, values: Values, labels: Mapping[str, str]) -> None:
        """Read the fields of another trainer, whose options count where this file and the caller say nothing."""
        own = {name: value for name, value in self.options.items() if name not in self.yielding}
        other = Reading(trainer, path, values, {**own, **self.given}, labels, winner="the trainer's wins")
        other.run()
        for setting, value in other.options.items():
            if setting not in own:
                self.options[setting] = value
                self._of_included[setting] = other
                self.fields_of.pop(setting, None)
        for one in other._assumptions.values():
            self.assume(one.words, one.remedy, *one.settings)
        self.included.append(other)
        self.lack(other.lacks)

    def lack(self, values: Mapping[str, tuple[str, ...]]) -> None:
        """Record values by setting that what shards does not have, as `Trainer.lacks`."""
        for setting, lacked in values.items():
            known = self.lacks.get(setting)
            self.lacks[setting] = () if () in (known, lacked) else tuple(dict.fromkeys((*(known or ()), *lacked)))

    def drop(self, setting: str) -> None:
        """Drop an option that what was given contradicts; its fields say so."""
        if setting in self.options:
            self._dropped[setting] = self.options.pop(setting)

    def forget(self, setting: str) -> None:
        """Drop an option that is another's default, without a word."""
        self.options.pop(setting, None)
        self.fields_of.pop(setting, None)
        self._assumptions = {words: one for words, one in self._assumptions.items() if one.settings != (setting,)}

    def rows(self, spelled: Callable[[str, object], str]) -> list[Row]:
        """Return all fields with what becomes of them, and those of the files that this one names.

        `spelled`: how a setting with a value is typed.
        """
        for one in self.included:
            for name in self._dropped:
                one.drop(name)
            one.winning = {name for name, value in one.options.items() if self.options.get(name) != value}
        return [*self._own(spelled), *(row for one in self.included for row in one.rows(spelled))]

    def _own(self, spelled: Callable[[str, object], str]) -> list[Row]:
        given: dict[str, list[str]] = {}
        for setting, names in [*self.fields_of.items(), (_MODEL, self.model_fields)]:
            for name in names:
                own = given.setdefault(self._stand_ins.get(name, name), [])
                if setting not in own:
                    own.append(setting)
        shown = [name for name in self.values if name not in self._stand_ins]
        rows = [self._row(name, self.values[name], given.get(name, []), spelled) for name in shown]
        empty = [Row(name, _shown(value), "no effect", _NO_VALUE) for name, value in self._replaced.values()]
        return [*(replace(row, field=self.label(row.field)) for row in rows), *empty]

    def _row(self, name: str, value: Value, settings: list[str], spelled: Callable[[str, object], str]) -> Row:
        shown = _shown(value)
        if settings and name not in self._unforecast:
            words = []
            for one in settings:
                words.append(self._as_option(one, spelled))
            return Row(name, shown, "read", ", ".join(words), tuple(settings))
        if name in self._idle:
            return Row(name, shown, "no effect", self._idle[name])
        if (why := self._unforecast.get(name)) is not None:
            return Row(name, shown, "not forecast", why)
        unforecast = fields.unforecast(self.trainer.tables)
        idle = fields.idle(self.trainer.tables)
        known = (unforecast, *(patterns for _, patterns in idle))
        if not any(one in patterns for patterns in known for one in self._names(name)) and (meant := self._meant(name)):
            return Row(name, shown, "not understood", f"is it {meant}?")
        if (why := _first(unforecast, name) or _first(unforecast, self.label(name))) is not None:
            # A switch that is off, or an empty value, changes nothing.
            if not value or value in ("none", "None", AUTO):
                return Row(name, shown, "no effect", "the default")
            return Row(name, shown, "not forecast", why)
        if value in _EMPTY:
            return Row(name, shown, "no effect", _NO_VALUE)
        if name in self._consulted:
            return Row(
                name, shown, "read", self._consulted[name] or ("by the trainer" if value == AUTO else "the default")
            )
        for why, patterns in idle:
            if any(fnmatchcase(own, one) for one in patterns for own in self._names(name)):
                return Row(name, shown, "no effect", why)
        near = nearest(name, sorted(self._readable))
        return Row(name, shown, "not understood", f"is it {self._spelled(name, near)}?" if near else "")

    def _names(self, name: str) -> tuple[str, ...]:
        """Return the names that tables may have of a field."""
        label = self.label(name)
        return name, name.removeprefix(self.trainer.prefix), label, label.removeprefix("--")

    def _meant(self, name: str) -> str:
        """Return the field of which a name is a misspelling; empty if it is none that this reader asks for."""
        parts = name.split(".")
        for place, part in enumerate(parts):
            before = "".join(f"{one}." for one in parts[:place])
            is_last = place == len(parts) - 1
            left = (one.removeprefix(before) for one in self._readable | self._named if one.startswith(before))
            others = sorted({one.partition(".")[0] for one in left if ("." in one) is not is_last})
            if part in others:
                continue
            near = [one for one in get_close_matches(part, others, 1, _SLIP) if abs(len(one) - len(part)) <= _LETTERS]
            meant = ".".join((*parts[:place], *near, *parts[place + 1 :]))
            return self._spelled(name, meant) if near and meant not in self.values else ""
        return ""

    def _spelled(self, name: str, other: str) -> str:
        """Return the name of another field as the file spells this one."""
        is_argument = self.label(name).startswith("--")
        return f"--{other.removeprefix('--').replace('_', '-')}" if is_argument else other

    def _as_option(self, setting: str, spelled: Callable[[str, object], str]) -> str:
        if setting == _MODEL:
            own = self._named_model(spelled)
        elif setting in self.options:
            own = spelled(setting, self.options[setting])
        else:
            return f"{spelled(setting, self._dropped.get(setting, True))} (overridden)"
        return f"{own} ({self.winner})" if self._is_overridden(setting) else str(own)

    def source(self, setting: str) -> tuple[str, ...]:
        """Return the fields that give an option, by the names in their file."""
        value = self.options.get(setting)
        own = self._of_included.get(setting, self)
        same = (one for one in self.included if setting in one.options and one.options[setting] == value)
        for reading in (own, *same):
            if names := reading.fields_of.get(setting):
                return tuple(reading.label(name) for name in names)
        return ()

    def _named_model(self, spelled: Callable[[str, object], str]) -> str:
        if not isinstance(self.model, str):
            return "the model"
        config = found_config(self.model, self.path)
        return spelled(_MODEL, self.model if config is None else config.name)

    def _is_overridden(self, setting: str) -> bool:
        return setting in self.winning or (
            setting in self.given and str(self.effective(setting)) != str(self.options.get(setting))
        )


_OF_NAMES = ((r"z(?:ero)?[-_]?(?:stage)?[-_]?([12])(?!\d)", "zero{}"), (r"ddp|multi[-_]?gpu", "none"))
"""Shardings that the name of a file tells, as a pattern and the sharding; of others it is zero3."""


def _sharding_of(word: str) -> str:
    """Return the sharding that the name of a launcher's file may tell."""
    for pattern, sharding in _OF_NAMES:
        if (match := re.search(pattern, Path(word).name, re.IGNORECASE)) is not None:
            return sharding.format(*match.groups())
    return "zero3"


def missing_file(path: Path, field_name: str, word: str, other: str = "") -> InvalidArgumentError:
    """Return the error about a file that is not there which a field of another, or its command, names.

    `other`: a remedy besides the file.
    """
    where = f"{field_name}: " if field_name else ""
    remedy = f"the file beside {path.name:.80}, its path, or {other}"
    remedy = remedy if other else f"the file beside {path.name:.80}, or its path"
    return InvalidArgumentError(f"{path!s:.200}: {where}{word:.200}: no such file", remedy=remedy)


def _near_whole(value: Value, least: int) -> int | None:
    """Return the whole number that a value may mean: 4096 of `4k`, 2048 of `2,048` or 2048.5, 2 of `two`; else None."""
    plain = str(value).strip().lower().replace(",", "").replace("_", "")
    if (spelled := spelled_count(plain)) is not None:
        return max(least, spelled)
    with suppress(ValueError, OverflowError, InvalidArgumentError):
        meant = binary_count(plain.upper() if plain.endswith("m") else plain) or float(plain)
        return max(least, min(int(meant), _MOST - 1))
    return None


def _is_word(text: str) -> bool:
    return text not in ("", "…")


def _first(patterns: Mapping[str, str], name: str) -> str | None:
    return next((why for pattern, why in patterns.items() if fnmatchcase(name, pattern)), None)


def _quoted(value: Value) -> str:
    """Return a value as an error has it: a list as one."""
    return f"[{_shown(value)}]" if isinstance(value, list) else _shown(value)


def _shown(value: Value, most: int = 40) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return ", ".join(map(str, value[:6])) + (", …" if len(value) > 6 else "")
    text = "null" if value is None else str(value)
    return text if len(text) <= most else f"{text[: most - 1]}…"
