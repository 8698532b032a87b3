"""The most similar known names, for messages about unknown ones."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence

from paceline import _core

_MOST_CHARACTERS = 80
_SLIP = 0.6
"""Of the letters of a GPU's series: `rxt` is `rtx`, and `mi` is not `gb`."""
_VENDORS = frozenset({"nvidia", "geforce", "tesla", "amd", "instinct"})
_MEMORY, _POWER = re.compile(r"\d+gb"), re.compile(r"\d+w")


def nearest(word: str, known: Sequence[str]) -> str | None:
    """Return the known name most similar to a word, which need not be UTF-8; None if none is similar."""
    typed = word[:_MOST_CHARACTERS].encode(errors="replace").decode()
    return _core.nearest(typed, list(known))


def alike(word: str, known: Sequence[str], most: int = 3) -> list[str]:
    """Return known names that a word may mean: those that begin so, or else similar ones, most similar first.

    For names that have a family and a size in common, such as those of models: `llama-8b` is one letter from
    `llama-7b`, but means `llama-3-8b`; and `llama3` means that one rather than `llama-30b`.
    """
    typed = word[:_MOST_CHARACTERS].encode(errors="replace").decode().lower()
    begins = [name for name in known if len(typed) > 1 and _key(name).startswith(_key(typed))]
    if begins:
        whole = re.compile("[-_]?".join(map(re.escape, _key(typed))) + r"(?!\d)", re.IGNORECASE)
        return sorted(begins, key=lambda name: whole.match(name) is None)[:most]
    words = _words(typed)
    complete = sorted((name for name in known if len(words) > 1 and words <= _words(name)), key=len)
    return list(dict.fromkeys([*complete, *difflib.get_close_matches(typed, list(known), most)]))[:most]


def like_gpu(word: str, known: Mapping[str, Sequence[str]]) -> str | None:
    """Return the known GPU that a word means, or that is most like the GPU that it means; None if none is.

    GPUs whose names look alike may have nothing in common (`mi300x` and `gb300`), so the model's number has to be the
    same, and the letters before it but for a slip.

    Args:
        word: What was typed.
        known: The known GPUs, each with its names: its own, its aliases, and GPUs that it stands for.
    """
    typed = word[:_MOST_CHARACTERS].lower()
    for name, names in known.items():
        if _gpu_key(typed) in map(_gpu_key, names):
            return name
    begun = re.compile(rf"{re.escape(typed)}(?!\d)")
    # A GPU's own name first, then what it stands for; of several, the shortest: `a100-40` is `a100-40gb` without PCIe.
    for own_only in (True, False):
        lengths = {
            name: min((len(one) for one in ((name,) if own_only else names) if begun.match(one.lower())), default=0)
            for name, names in known.items()
        }
        if len(typed) > 1 and (able := [name for name, length in lengths.items() if length]):
            return min(able, key=lambda name: lengths[name])
    letters, number = _series(typed)
    by_number = [name for name in known if number and _series(name)[1] == number]
    # `h101` and `h1000` are slips; `a30` is another GPU.
    by_number = by_number or [name for name in known if len(number) > 2 and _series(name)[1][:-1] == number[:-1]]
    by_number = by_number or [name for name in known if len(number) > 3 and _series(name)[1] == number[:-1]]
    same = {name: _likeness(letters, _series(name)[0]) for name in by_number}
    # `A800-SXM4-80GB` is of the series of a GPU that a known one stands for.
    same |= {name: 1.0 for name, names in known.items() if number and (letters, number) in map(_series, names)}
    words = gpu_words(typed)
    # Of those of the series: the one with the same memory, of the same form, with the most similar name.
    shared = {name: words & gpu_words(*known[name]) for name in same}
    best = max(
        same,
        key=lambda name: (
            *(same[name], any(map(_MEMORY.fullmatch, shared[name])), len(shared[name])),
            max(_likeness(typed, one.lower()) for one in known[name]),
        ),
        default=None,
    )
    return best if best is not None and (same[best] > _SLIP or not letters) else None


def named_gpus(word: str, known: Mapping[str, Sequence[str]]) -> list[str]:
    """Return the known GPUs that have every word of a full name, such as `Tesla V100-SXM2-16GB` of nvidia-smi.

    Of one that draws another power than its siblings, the word has to say so.

    Args:
        word: What was typed.
        known: The known GPUs, each with its own names: these have its form, memory and power.
    """
    typed = word[:_MOST_CHARACTERS].lower()
    words, series = gpu_words(typed), _series(typed)

    def is_meant(name: str) -> bool:
        own = gpu_words(*known[name])
        power = {one for one in own if _POWER.fullmatch(one)}
        if not power <= words <= own:
            return False
        if any(_series(name)):
            return all(series) and _series(name) == series
        # No number tells the series of a TITAN X: all words of one of its names have to be there.
        return any(gpu_words(one) <= words for one in (name, *known[name]))

    return [name for name in known if is_meant(name)]


def gpu_words(*names: str) -> frozenset[str]:
    """Return the words of a GPU's names without the vendor's: `h100`, `sxm5`, `sxm`, `80gb` of `H100 SXM5 80 GB`."""
    joined = (re.sub(r"(\d)[ -](gb|w)\b", r"\1\2", name.lower()) for name in names)
    words = {word for name in joined for word in re.split(r"[^a-z0-9]+", name)} - _VENDORS
    # Any socket of a kind, if its generation is not given.
    return frozenset(words | {word.rstrip("0123456789") for word in words if word.startswith("sxm")}) - {""}


def _likeness(one: str, other: str) -> float:
    return difflib.SequenceMatcher(None, one, other).ratio()


def _gpu_key(name: str) -> str:
    """`RTX 4090` and `rtx-4090` are the same, and so are `nvidia-h100` and `h100`."""
    return re.sub(rf"^({'|'.join(_VENDORS)})+", "", re.sub(r"[^a-z0-9]", "", name.lower()))


def _series(name: str) -> tuple[str, str]:
    """Return the letters and the number of a GPU's series: `h` and `100` of `h100-pcie`; empty where there are none."""
    match = re.match(r"([a-z]*)(\d+)", _gpu_key(re.split(r"(?<=\d)[- _]", name.lower(), maxsplit=1)[0]))
    return ("", "") if match is None else (match[1], match[2])


def _words(name: str) -> frozenset[str]:
    return frozenset(re.split(r"[-_]", name.lower()))


def _key(name: str) -> str:
    return name.lower().replace("-", "").replace("_", "")
