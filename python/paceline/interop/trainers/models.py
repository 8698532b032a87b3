"""The model that a trainer's file names, or describes by its sizes."""

from __future__ import annotations

from pathlib import Path

from paceline.catalog.models.config import Config, built_in_configs, find_config
from paceline.catalog.models.names import resolve
from paceline.errors import InvalidArgumentError

_COMPARED = (
    *("model_type", "hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads"),
    *("intermediate_size", "vocab_size", "tie_word_embeddings", "head_dim", "moe_intermediate_size"),
)
_OWNER = "openai-community"
"""Of `gpt2`, which has no owner on the hub."""


def found_config(word: str | Path, path: Path) -> Config | None:
    """Return the configuration of a name, or of a folder or file beside the one that names it; None if it is unknown.

    Raises InvalidArgumentError for a malformed config.json.
    """
    beside = path.parent / word
    try:
        is_beside = bool(str(word)) and (beside / "config.json").is_file()
    except (OSError, ValueError):  # too long, or contains a NUL
        is_beside = False
    try:
        return resolve(beside if is_beside else word) or find_config(f"{_OWNER}/{word}")
    except InvalidArgumentError:
        if is_beside:
            raise
        return None


def same_sizes(config: Config) -> Config | None:
    """Return the built-in configuration of the same family and sizes; None if there is none."""
    for one in built_in_configs().values():
        if "hidden_size" in one.fields and all(_of(one, name) == _of(config, name) for name in _COMPARED):
            return one
    return None


def _of(config: Config, name: str) -> object:
    """Return a field, or its default where it is left out."""
    default = False if name == "tie_word_embeddings" else None
    default = config.fields.get("num_attention_heads") if name == "num_key_value_heads" else default
    return config.fields.get(name, default)
