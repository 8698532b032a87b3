"""The files that a script's command names: that of its program, and accelerate's of the launcher.

`accelerate launch --config_file acc.yaml -m axolotl.cli.train qlora.yml --micro_batch_size 4`: arguments win over the
program's file, and both over the launcher's (accelerate/commands/launch.py, transformers/training_args.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from paceline.interop.trainers.accelerate import ACCELERATE
from paceline.interop.trainers.document import SCRIPTS, Values, beside, document
from paceline.interop.trainers.reading import Reading, missing_file
from paceline.interop.trainers.shell import NAMED_FILE
from paceline.interop.trainers.words import compare_with_slurm

_NAMING = ("--config-file", "--config", "--job.config-file", "--cfg", NAMED_FILE)
"""Arguments whose value may be the file of a program, or accelerate's."""
_OF_LAUNCHER = "config_file"
_KINDS = {"use_deepspeed": "DEEPSPEED", "use_fsdp": "FSDP", "use_megatron_lm": "MEGATRON_LM", "multi_gpu": "MULTI_GPU"}
"""Switches of `accelerate launch`, and the `distributed_type` that each stands for."""
_OF_DEEPSPEED = ("zero_stage", "offload_optimizer_device", "offload_param_device")


def with_program(path: Path, values: Values, is_known: Callable[[Values], bool]) -> tuple[Values, dict[str, str]]:
    """Return a script's values over those of its program's file.

    Args:
        path: The script.
        values: Its arguments.
        is_known: Whether values are those of a trainer.

    Returns:
        The values, by the names of the file's fields where the program has a file, and the name of each in its file.

    Raises:
        InvalidArgumentError: A file is not there.
    """
    if path.suffix.lower() not in SCRIPTS:
        return values, {}
    for argument, word in _files(values):
        file = beside(path, word)
        if file is None:
            # accelerate's is missed where it is read, and what has no name may be data.
            if argument not in ("--config-file", NAMED_FILE):
                raise missing_file(path, argument, word)
            if argument == NAMED_FILE and not word.endswith(".json") and not is_known(values):
                raise missing_file(path, "", word)
            continue
        inside = document(file)
        if ACCELERATE.recognizes(inside):
            # A script may name it by a variable or without `launch`.
            if argument != "--config-file":
                values = {name: one for name, one in values.items() if name != argument}
                values["--config-file"] = word
            continue
        if not is_known(inside) and (is_known(values) or not is_known({**inside, **_fields(values)})):
            continue
        labels = {name: f"{file.name}: {name}" for name in inside}
        own = {name: one for name, one in values.items() if name != argument}
        labels |= {_field(name): name for name in own}
        return {**inside, **_fields(own)}, labels
    return values, {}


def _files(values: Values) -> Iterator[tuple[str, str]]:
    for argument in _NAMING:
        word = values.get(argument)
        if isinstance(word, str) and Path(word).suffix.lower() in (".yaml", ".yml", ".toml", ".json"):
            yield argument, word


def _field(name: str) -> str:
    """Return the field that an argument sets: `--micro-batch-size` sets `micro_batch_size`."""
    return name[2:].replace("-", "_") if name.startswith("--") else name


def _fields(values: Values) -> Values:
    return {_field(name): value for name, value in values.items()}


def take(reading: Reading) -> None:
    """Take what `accelerate launch` gets: its arguments, over its file. They count where the trainer says nothing."""
    labels: dict[str, str] = {}
    file = reading.text(_OF_LAUNCHER)
    values = _of_arguments(reading, labels)
    path = beside(reading.path, file) if file else None
    if path is not None:
        inside = document(path)
        if ACCELERATE.recognizes(inside):
            reading.known(_OF_LAUNCHER, f"read, too: {path.name}")
            labels |= {name: f"{path.name}: {name}" for name in inside if name not in values}
            values = {**inside, **values}
    elif file:
        reading.miss(_OF_LAUNCHER, file)
    if values:
        reading.include(ACCELERATE, path or reading.path, values, labels)
        compare_with_slurm(reading, _OF_LAUNCHER)


def _of_arguments(reading: Reading, labels: dict[str, str]) -> Values:
    """Return the launcher's arguments as fields of its file, and take them out of the reading."""
    if not any(reading.label(name).startswith("--") for name in (*_KINDS, _OF_LAUNCHER, "mixed_precision")):
        return {}
    fields: Values = {}

    def move(name: str, field: str, value: object) -> None:
        fields[field], labels[field] = value, reading.label(name)
        del reading.values[name]

    for name, kind in _KINDS.items():
        if name in reading.values and reading.flag(name):
            move(name, "distributed_type", kind)
    names = [name for name in reading.values if reading.label(name).startswith("--")]
    for name in names:
        value = reading.values[name]
        if name == "mixed_precision" or name.startswith("dynamo_"):
            move(name, name, value)
        elif name in _OF_DEEPSPEED and fields.get("distributed_type", "DEEPSPEED") == "DEEPSPEED":
            move(name, f"deepspeed_config.{name}", value)
        elif name.startswith("fsdp_") and fields.get("distributed_type") == "FSDP":
            move(name, f"fsdp_config.{name}", value)
        elif name.startswith(("parallelism_config_", "megatron_lm_")):
            section = "parallelism_config" if name.startswith("p") else "megatron_lm_config"
            move(name, f"{section}.{name}", value)
    if fields and "distributed_type" not in fields and _OF_LAUNCHER not in reading.values:
        fields["distributed_type"] = "DEEPSPEED" if any(one.startswith("deepspeed") for one in fields) else "MULTI_GPU"
    return fields
