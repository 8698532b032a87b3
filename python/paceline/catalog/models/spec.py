"""From what users type to a workload: `llama-3-8b@h100:seq=8192,batch=2`, or a name or config.json with options."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from paceline._internal.nearest import nearest
from paceline.catalog import names
from paceline.catalog.hardware import Hardware, all_hardware, find_hardware
from paceline.catalog.models.config import Config, built_in_configs, find_config, is_config, read_config
from paceline.catalog.models.families import model_of
from paceline.catalog.models.workload import Workload
from paceline.errors import InvalidArgumentError

OPTIONS = ("gpu", "seq", "batch", "dtype", "checkpointing", "attention", "kernels")
"""Settings that make a workload of a model."""
ONLY_MODELS = ("gpu", "seq", "checkpointing", "attention", "kernels")
"""Those that have no effect on a recording."""
_PRECISIONS = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}
_LONGEST = 2**24


def find_workload(source: object, **given: Any) -> Workload | None:  # noqa: ANN401
    """Return the workload that a word or a file stands for; None if it is not a model.

    Args:
        source: `NAME`, `NAME@GPU` or `NAME@GPU:OPTION=VALUE,…`, or a config.json, likewise.
        **given: `OPTIONS`; None counts as not given. Those in `source` and those given may not contradict.

    Raises:
        InvalidArgumentError: The model has no GPU, an option is unknown or wrong, or the configuration is malformed.
    """
    if not isinstance(source, str | Path):
        return None
    named, options = _parsed(str(source))
    options = _merged(str(source), options, {name: value for name, value in given.items() if value is not None})
    config = _config_of(named)
    if config is None:
        if "@" not in str(source):
            return None
        raise _unknown(named)
    if "gpu" not in options:
        if is_recorded(named):
            return None
        known = ", ".join(device.name for device in all_hardware())
        raise InvalidArgumentError(
            f"{config.name} is a configuration, not a recording: its times are computed for a GPU; name one, as in "
            f"{named}@h100 or --gpu h100 (known are {known})"
        )
    return workload_of(config, **options)


def config_named(word: str) -> Config:
    """Return a built-in configuration or a config.json; options after @ are ignored. Raises InvalidArgumentError."""
    named, _ = _parsed(word)
    found = _config_of(named)
    if found is None and Path(named).suffix == ".json":
        return read_config(Path(named))
    if found is None:
        raise _unknown(named)
    return found


def workload_of(  # noqa: PLR0917
    config: Config,
    gpu: str | Hardware,
    seq: int | None = None,
    batch: int | None = None,
    dtype: str | None = None,
    checkpointing: str | None = None,
    attention: str | None = None,
    kernels: str | None = None,
) -> Workload:
    """Return the workload of a configuration on a GPU.

    Args:
        config: The configuration.
        gpu: Its name or device file.
        seq: Tokens of a sample; by default the model's context, at most 8,192.
        batch: Samples of a forward and backward pass, 1 by default.
        dtype: `fp8`, `bf16`, `fp16`, `tf32` or `fp32`; by default the GPU's 16-bit type.
        checkpointing: `none`, `selective` or `full`.
        attention: `flash` or `unfused`.
        kernels: `eager`, `fused` or `compiled`.

    Raises:
        InvalidArgumentError: A value is unknown, or contradicts the model or the GPU.
    """
    hardware = gpu if isinstance(gpu, Hardware) else find_hardware(gpu)
    precision = _PRECISIONS.get(dtype, dtype) if dtype else _default_precision(hardware)
    hardware.peak(_one_of(precision, names.members(names.Precision), "dtype"))
    return Workload(
        model_of(config, seq),
        hardware,
        batch or 1,
        precision,
        _one_of(attention or "flash", names.members(names.Attention), "attention"),
        _one_of(checkpointing or "none", names.members(names.Checkpointing), "checkpointing"),
        _one_of(kernels or "fused", names.members(names.Kernels), "kernels"),
        source=config.source or config.where,
    )


def _unknown(named: str) -> InvalidArgumentError:
    near = nearest(named, list(built_in_configs()))
    hint = f" (did you mean '{near}'?)" if near else ""
    return InvalidArgumentError(
        f"unknown model '{named[:80]}'{hint}; give a config.json, or a name that `paceline models` lists"
    )


def is_recorded(name: str) -> bool:
    """Return whether there is a built-in recording of this name, too."""
    from paceline.catalog.library import built_in_trace, trace_names

    return built_in_trace(name) in trace_names()


def refuse_on_recording(name: str, given: dict[str, Any]) -> None:
    """Raise InvalidArgumentError for options that only models from a configuration have."""
    for option in ONLY_MODELS:
        if given.get(option) is not None:
            hint = "; --device has published rates of recordings" if option == "gpu" else ""
            raise InvalidArgumentError(
                f"has no effect on {name}, which was recorded: it is for models from a configuration "
                f"(`paceline models`){hint}",
                setting=option,
            )


def _default_precision(hardware: Hardware) -> str:
    return next(name for name in ("bf16", "fp16", "fp32") if name in hardware.peak_flops)


def _config_of(named: str) -> Config | None:
    found = find_config(named)
    if found is not None:
        return found
    try:
        path = Path(named)
        return read_config(path) if is_config(path) else None
    except (OSError, ValueError):  # too long, or contains a NUL
        return None


def _parsed(text: str) -> tuple[str, dict[str, Any]]:
    """Return name and options of NAME@GPU:OPTION=VALUE,…"""
    named, at, rest = text.rpartition("@")
    if not at or "/" in rest.partition(":")[0]:
        return text, {}
    gpu, colon, pairs = rest.partition(":")
    if not gpu:
        raise InvalidArgumentError(f"'{text[:80]}' has no GPU after @; write {named}@h100")
    options: dict[str, Any] = {"gpu": gpu}
    for pair in pairs.split(",") if colon else []:
        option, equals, value = pair.partition("=")
        if option not in OPTIONS or option == "gpu" or not (equals and value):
            raise InvalidArgumentError(
                f"'{text[:80]}': '{pair[:40]}' is not an option; write OPTION=VALUE with {', '.join(OPTIONS[1:])}"
            )
        if option in options:
            raise InvalidArgumentError(f"'{text[:80]}': {option} is given twice")
        options[option] = _whole(text, option, value) if option in ("seq", "batch") else value
    return named, options


def _whole(text: str, option: str, value: str) -> int:
    if not (value.isascii() and value.isdigit() and len(value) < 12 and 1 <= int(value) <= _LONGEST):
        raise InvalidArgumentError(f"'{text[:80]}': {option}: '{value[:40]}' is not a whole number from 1 to {_LONGEST}")
    return int(value)


def _merged(text: str, own: dict[str, Any], given: dict[str, Any]) -> dict[str, Any]:
    for name, value in given.items():
        if name in own and own[name] != value:
            raise InvalidArgumentError(f"'{text[:80]}' says {own[name]}; give one of them", setting=name)
    return given | own


def _one_of(value: str, known: tuple[str, ...], setting: str) -> Any:  # noqa: ANN401 - a Literal
    if value not in known:
        near = nearest(value, list(known))
        hint = f"did you mean {near}?" if near else f"it is one of {', '.join(known)}"
        raise InvalidArgumentError(f"'{value[:80]}' is unknown; {hint}", setting=setting)
    return value
