"""The language model of a configuration that has several parts: of models that take images, video or sound, too.

text-parts.json has which families of transformers have which, and what their files leave out.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from paceline.catalog.constants import read_document
from paceline.catalog.models.config import Config
from paceline.catalog.models.heads import OF_COMPOSITES, architecture_of
from paceline.catalog.models.vision import TOWERS
from paceline.errors import InvalidArgumentError

_FILE = Path(__file__).parent.parent / "text-parts.json"
_PARTS = ("text_config", "llm_config", "language_config", "thinker_config")
"""Fields with the configuration of the language model."""
_DEEPEST = 4
"""Parts within parts; models of speech and images have two."""


@dataclass(frozen=True)
class Part:
    """A configuration of a known family."""

    config: Config
    notes: tuple[str, ...] = ()
    """Parts that are left out, and assumptions where the file is silent."""


@lru_cache(maxsize=1)
def _table() -> dict[str, Any]:
    return read_document(_FILE, "text-parts")


def text_kinds() -> dict[str, str]:
    """Return the families of text parts that have a `model_type` of their own."""
    return dict(_table()["families"])


def known_composites() -> dict[str, str]:
    """Return the `model_type` of models with a text part, and that of the part."""
    return dict(_table()["composites"])


def known_defaults() -> dict[str, dict[str, Any]]:
    """Return what files of text parts leave out, by their `model_type`."""
    return dict(_table()["defaults"])


def language_part(config: Config, kinds: tuple[str, ...]) -> Part:
    """Return the part of a configuration that is a language model of a known family: all of it, as a rule.

    Args:
        config: The configuration.
        kinds: The known families.

    Raises:
        InvalidArgumentError: There is no such part, or its head is unknown.
    """
    if config.kind in kinds:
        return Part(config)
    if config.kind in _table()["families"]:
        # A text part in a file of its own.
        return _with_defaults(config, config.kind)
    field = next((name for name in _PARTS if isinstance(config.fields.get(name), dict)), None)
    default = _table()["composites"].get(config.kind)
    if field is None:
        # Older files of some families have the fields of the language model beside the others.
        if default is None or "hidden_size" not in config.fields:
            raise _unknown(config)
        return _with_head(config, _with_defaults(config, default), "the rest of the model")
    inner = config.part(field)
    if not isinstance(inner.fields.get("model_type"), str):
        inner = replace(inner, fields={**inner.fields, "model_type": default})
    kind = str(inner.fields["model_type"])
    if any(name in inner.fields for name in _PARTS) and inner.prefix.count(".") < _DEEPEST:
        outer = {name: config.fields[name] for name in ("architectures",) if name in config.fields}
        return language_part(replace(inner, fields={**outer, **inner.fields}), kinds)
    if kind not in kinds and kind not in _table()["families"]:
        raise _unknown(config, f", nor is the '{kind[:80]}' of its {field}")
    return _with_head(config, _with_defaults(inner, kind), f"everything outside its {config.prefix}{field}")


def _unknown(config: Config, part: str = "") -> InvalidArgumentError:
    return config.wrong(
        "model_type" if "model_type" in config.fields else "_class_name",
        f"'{config.kind[:80]}' is not known{part}",
        remedy="paceline record --gpu h100 -o mine.json -- python train.py (estimates any script)",
    )


def _with_defaults(config: Config, kind: str) -> Part:
    """Return a text part as its family, with what files leave out."""
    defaults = _table()["defaults"].get(kind, {})
    family = _table()["families"].get(kind, kind)
    # `null` is a value: a window of `null` is none.
    fields = {**defaults, **config.fields}
    left_out = [name for name in ("hidden_size", "num_hidden_layers", "intermediate_size") if name not in config.fields]
    notes = [
        f"Assumed {config.prefix}{name} {fields[name]}, the default of transformers: {config.where} leaves it out"
        for name in left_out
        if name in fields
    ]
    fields |= _table()["fixed"].get(kind, {})
    if kind != family:
        # Its classes are not those of the family; a file of its own has that of the whole model, or none.
        fields = {name: value for name, value in fields.items() if name != "architectures"}
    return Part(replace(config, fields={**fields, "model_type": family}), tuple(notes))


def _with_head(whole: Config, part: Part, rest: str) -> Part:
    """Return a text part with the head that the whole model has."""
    fields = dict(part.config.fields)
    for field in ("tie_word_embeddings", "id2label", "num_labels"):
        if whole.fields.get(field) is not None:
            fields[field] = whole.fields[field]
    fields.pop("architectures", None)
    family = str(fields["model_type"])
    architectures = whole.fields.get("architectures")
    for name in (architectures if isinstance(architectures, list) else [architectures]) if architectures else []:
        end = next((it for it in OF_COMPOSITES if isinstance(name, str) and name.endswith(it)), None)
        if end is None:
            raise whole.wrong(
                "architectures",
                f"{name!r:.80} is not a class of a known head",
                remedy=f"those that end in {', '.join(OF_COMPOSITES)}",
            )
        of_text = "ForCausalLM" if OF_COMPOSITES[end] == "words" else end
        fields["architectures"] = [architecture_of(family, of_text)]
    if whole.kind in TOWERS and isinstance(whole.fields.get("vision_config"), dict):
        return Part(replace(part.config, fields=fields), part.notes)
    said = f"Skipped {rest} of {whole.kind}: only its language model ({family}) is forecast"
    return Part(replace(part.config, fields=fields), (said, *part.notes))
