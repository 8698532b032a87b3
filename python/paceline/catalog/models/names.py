"""Models by name: built in, `org/name` of Hugging Face's hub, a folder, or a config.json.

Nothing is downloaded. A name of the hub is looked up in the local cache first, as `huggingface_hub` lays it out
(`models--org--name/refs/main` has the revision, `snapshots/REVISION/` its files), then among the built-in models.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Literal

from paceline._internal.documents import read_small
from paceline._internal.files import NO_SUCH_FILE, list_of
from paceline._internal.nearest import alike
from paceline.catalog.models.config import Config, built_in_configs, find_config, is_config, read_config
from paceline.catalog.strategies import unknown
from paceline.errors import InvalidArgumentError

_OF_HUB = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}")
"""The rule of `huggingface_hub.utils.validate_repo_id`, with an owner."""
_VARIANTS = re.compile(
    r"[-_.](?:instruct|chat|it|pt|hf|base|bf16|fp16|fp8|awq|gptq(?:-int[48])?|int[48]"
    r"|(?:unsloth-)?bnb-4bit|4bit|8bit|mcore|2507|v0\.\d|cased|uncased)$",
    re.IGNORECASE,
)
"""Words after a name that change no sizes: how a model was trained further, or how its weights are held."""
_WITHIN = re.compile(r"(?<=[-_])(?:coder|math|instruct|chat|vl)[-_](?=\d)", re.IGNORECASE)
"""Words between a family and its size that change no sizes of the decoder: `Qwen2.5-Coder-7B`, `Qwen3-VL-8B`."""
_OF_IMAGES = re.compile(r"(?:^|[-_])(?:vl|vision)(?:[-_]|$)", re.IGNORECASE)
_OTHER_SIZES = re.compile(
    r"\d*x?\d+(?:\.\d+)?[bm]|a\d+(?:\.\d+)?b|\d+e|mini|small|tiny|nano|medium|large|xl+|lite|flash|air|pro|moe|pruned"
    r"|draft|eagle\d*|medusa|minitron|multimodal|omni|audio|vision|plus|max|turbo|upscaled|hybrid|mamba2?",
    re.IGNORECASE,
)
"""Words beside the name of a built-in model that tell of other sizes."""
_OWNERS = re.compile(r"^(?:meta|mistralai)-(?=llama|mistral|codellama)", re.IGNORECASE)
_FILES = ("config.json", "transformer/config.json")
"""Of a folder: of transformers' models, and of diffusers' pipelines, of which the transformer is trained."""
_LOADING = re.compile(
    r"Fast(?:Language|Vision)?Model\.from_pretrained\((?:\s*(?:model_name\s*=\s*)?[\"']([\w./-]{1,150})[\"'])?"
)
"""Of a script that trains by Unsloth, with the model's name."""
_LARGEST_SCRIPT = 1 << 20
_LARGEST_REFERENCE = 1000
_MOST_WORDS, _MOST_FOLDERS = 16, 8


def resolve(word: str | Path) -> Config | None:
    """Return the configuration that a word stands for; None if it is no model: a recording, or nothing known.

    Its `notes` say which built-in model stands for another name, and which revision of the cache was read.

    Args:
        word: A built-in name, `org/name`, a config.json, or a folder with one.

    Raises:
        InvalidArgumentError: The configuration is malformed, a folder has none, or the hub's name is unknown.
    """
    text = str(word)
    if (config := find_config(text)) is not None and not (_is_of_hub(text) and _cached(text)):
        return config
    path = Path(text)
    kind = _kind_of(path)
    if kind == "folder":
        return _of_folder(path)
    if kind == "file":
        return read_config(path) if is_config(path) else None
    if not _is_of_hub(text):
        return _variant(text)
    config = _of_cache(text) or _variant(text)
    if config is None and path.suffix != ".json":
        raise unknown_model(text)
    return config


def _kind_of(path: Path) -> Literal["file", "folder", "none"]:
    try:
        return "folder" if path.is_dir() else "file" if path.exists() else "none"
    except (OSError, ValueError):  # too long, or contains a NUL
        return "none"


def unknown_model(text: str) -> InvalidArgumentError:
    """Return the error for a name that is neither a model nor a recording."""
    if text.endswith(".json"):
        return InvalidArgumentError(f"{text:.200}: {NO_SUCH_FILE}", remedy=list_of(Path(text)))
    plainer = [name for bare in _plainer(text) for name in (bare, _OWNERS.sub("", bare))]
    near = next((near for name in plainer if (near := alike(name, list(built_in_configs())))), [])
    if not _is_of_hub(text):
        return unknown("model", text, near, "paceline list models")
    ways = "paceline list models; a model of the hub: hf download " + text + " config.json"
    return unknown("model", text, near, ways)


def of_script(path: Path) -> InvalidArgumentError:
    """Return the error about a script in Python in the place of a workload."""
    ways = f"paceline record -o mine.json -- python {path!s:.80} (then simulate mine.json), or "
    try:
        match = _LOADING.search(read_small(path, _LARGEST_SCRIPT))
    except (OSError, ValueError, InvalidArgumentError):
        match = None
    if match is not None:
        config = None if match[1] is None else _variant(match[1])
        name = "MODEL" if config is None else config.name
        ways += f"without it: paceline simulate {name} --lora 16 --quantize nf4"
    else:
        ways += "the shell script or configuration file that it is launched with"
    return InvalidArgumentError(f"{path!s:.200}: is a script in Python", remedy=ways)


def _is_of_hub(text: str) -> bool:
    return _OF_HUB.fullmatch(text) is not None


def _of_folder(path: Path) -> Config:
    file = _file_in(path)
    if file is None:
        raise InvalidArgumentError(
            f"{path!s:.200}: the folder has no config.json", remedy="the folder that save_pretrained() wrote"
        )
    return read_config(file)


def _file_in(folder: Path) -> Path | None:
    return next((folder / name for name in _FILES if (folder / name).is_file()), None)


def cache_folders() -> Iterator[Path]:
    """Yield the folders in which `huggingface_hub` keeps what it has downloaded, by its environment variables."""
    for name in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"):
        if os.environ.get(name):
            yield Path(os.environ[name]).expanduser()
            return
    if os.environ.get("HF_HOME"):
        yield Path(os.environ["HF_HOME"]).expanduser() / "hub"
        return
    home = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    yield Path(home).expanduser() / "huggingface" / "hub"


def _cached(text: str) -> Path | None:
    """Return the newest config.json of a model in the local cache; None if it has none."""
    for cache in cache_folders():
        try:
            folder = cache / f"models--{text.replace('/', '--')}"
            reference = folder / "refs" / "main"
            if reference.is_file():
                revision = read_small(reference, _LARGEST_REFERENCE).strip()
                path = _file_in(folder / "snapshots" / revision) if re.fullmatch(r"\w{1,64}", revision) else None
                if path is not None:
                    return path
            files = [file for name in _FILES for file in folder.glob(f"snapshots/*/{name}")]
            if files:
                return max(files, key=lambda file: (file.stat().st_mtime_ns, str(file)))
        except (OSError, ValueError):
            continue
    return None


def _of_cache(text: str) -> Config | None:
    file = _cached(text)
    if file is None:
        return None
    return replace(read_config(file), name=text.rpartition("/")[2].lower(), notes=(f"Read {text} from {file}",))


def _plainer(text: str) -> list[str]:
    """Return a name without its owner, then without one after the other of what does not change its sizes."""
    names = [text.rpartition("/")[2]]
    while (shorter := _VARIANTS.sub("", names[-1])) != names[-1]:
        names.append(shorter)
    return names


def _variant(text: str) -> Config | None:
    """Return the built-in model of the same sizes; its notes say so."""
    config = next(filter(None, map(_of_name, _plainer(text))), None)
    if config is None and "/" in text:
        # Of a folder with the weights, one of the folders above may have the model's name.
        parts = [_WITHIN.sub("", part) for part in text.split("/")[-_MOST_FOLDERS:] if part]
        config = next(filter(None, map(_within, reversed(parts))), None)
    if config is None:
        return None
    notes = [f"Assumed the sizes of {config.name} for {text}"]
    if _OF_IMAGES.search(text.rpartition("/")[2]):
        notes.append(f"Not modeled: the encoder of images of {text}")
    return replace(config, notes=tuple(notes), called=text)


def _of_name(bare: str) -> Config | None:
    names = (bare, _OWNERS.sub("", bare), _WITHIN.sub("", bare))
    return next((config for name in names if (config := find_config(name)) is not None), None)


def _within(name: str) -> Config | None:
    """Return the built-in model whose name is a part of another: of `Skywork-Reward-V2-Qwen3-8B`, qwen3-8b.

    Words beside it that tell of other sizes make it none, and so does a family without a version behind other words,
    as that of `cogito-v1-preview-qwen-14B`.
    """
    words = re.split(r"[-_]", name[:_LARGEST_REFERENCE])[:_MOST_WORDS]
    for count in range(len(words), 0, -1):
        for first in range(len(words) - count + 1):
            last = first + count
            config = find_config("-".join(words[first:last]))
            if config is None or any(_OTHER_SIZES.fullmatch(one) for one in (*words[:first], *words[last:])):
                continue
            if first == 0 or count > 2 or any(map(str.isdigit, words[first])):
                return config
    return None
