"""Kinds of values: what a setting accepts, and how it is converted.

A check takes the text of a flag, a variable or a file, or the value of a Python keyword or a TOML key, and returns the
value that Paceline works with, so a mistake gives the same message everywhere. The message says what is wrong and how
to write it correctly; `Setting.check` adds the setting and the source.
"""

from __future__ import annotations

import ipaddress
import math
import operator
import re
import stat
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from numbers import Real
from pathlib import Path
from types import MappingProxyType
from typing import Any

from paceline import _core
from paceline._internal import units
from paceline._internal.documents import read_small
from paceline._internal.files import NO_DASH, NO_WORKING_DIRECTORY, working_directory_is_gone
from paceline._internal.nearest import nearest
from paceline._internal.netif import check_interface
from paceline._internal.units import binary_count, shown, spelled_count
from paceline.catalog import compression, losses, optimizers
from paceline.catalog.adapters import parse_adapter
from paceline.catalog.dtypes import DTYPE_BYTES, SHORT_DTYPES
from paceline.catalog.libraries import find_library
from paceline.catalog.offload import parse_offload
from paceline.catalog.strategies import find_coordinator, find_strategy
from paceline.errors import InvalidArgumentError

BAIDU_RING = "baidu-ring"
"""A preset: ring all-reduce over MPI, without fusion and without a negotiating coordinator."""
MOST_WORKERS = 1_000_000
"""More than 65,535 are forecast where collectives are single events: of plans."""
MOST_SERVERS = 60_000
MOST_STREAMS = 64
MOST_STALENESS = 1_000_000
LONGEST_TIMEOUT_S = 30 * 86_400.0
SHORTEST_SECRET = 16
NONE = "none"
"""The value that switches off what a trainer's file switches on."""
PLACEMENTS = ("round-robin", "tensorflow", "even")
BY_BUCKET = ("round-robin", "even")
"""Placements that need no names."""


@dataclass(frozen=True)
class Kind:
    """The type of a setting's values."""

    words: str
    """A value in words: `SIZE`, or with alternatives `none|SIZE,…`."""
    check: Callable[[object], Any]
    """Converts the given value. Raises InvalidArgumentError."""
    choices: tuple[str, ...] = ()
    """All possible values, if they can be listed."""
    is_switch: bool = False
    """Either true or false."""
    is_list: bool = False
    literal: str = ""
    """The name of the `Literal` of `choices` in `paceline.catalog.names`."""
    python: str = "str"
    """The annotation of what a keyword takes."""
    checked: str = "str"
    """The annotation of what it becomes."""
    rust: str = ""
    """The type of it in the core, if it has a default there."""
    short: str = ""
    """The placeholder in --help, if it is not what `words` gives."""

    @property
    def placeholder(self) -> str:
        """The placeholder in --help: `SIZE`, `N,…`; words that stand for themselves are in the help's text."""
        words = [word for word in self.words.removesuffix(",…").split("|") if word.upper() == word] or ["NAME"]
        several = ",…" if self.words.endswith(",…") else ""
        return self.short or f"{'|'.join(words)}{several}"


def _integer(value: object) -> int | None:
    """Return the value of an integer of any library, such as NumPy; None for other values, and for booleans."""
    if isinstance(value, bool):
        return None
    try:
        return operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        return None


_POWER_OF_TEN = re.compile(r"\d{1,12}(\.\d{1,12})?[eE]\+?\d{1,2}", re.ASCII)


def whole(least: int, most: int, words: str = "N", usual: int = 8) -> Kind:
    """Whole numbers in a range; text with digits is accepted, too. `usual`: the number to try instead of text."""

    def check(value: object) -> int:
        integer = _integer(value)
        if isinstance(value, str) and (digits := value.removeprefix("-")).isascii() and digits.isdigit():
            # More digits are out of range anyway, and Python refuses to convert thousands of them.
            integer = int(value) if len(value) <= 20 else most + 1
        if integer is None and isinstance(value, str) and _POWER_OF_TEN.fullmatch(value):
            integer = int(float(value)) if float(value).is_integer() else None
        if integer is None:
            typed = "None" if value is None else f"'{shown(value)}'"
            spelled = spelled_count(value) if isinstance(value, str) else None
            near = max(least, min(most, usual if spelled is None else spelled))
            raise InvalidArgumentError(
                f"must be a whole number, {least}-{most}, not {typed}", remedy=f"{{this={near}}}"
            )
        if not least <= integer <= most:
            raise InvalidArgumentError(
                f"must be {least}-{most}, not {shown(value)}", remedy=f"{{this={least if integer < least else most}}}"
            )
        return integer

    return Kind(words, check, python="int", checked="int", rust="u32" if most < 2**32 else "u64")


def count(least: int, most: int, usual: int = 8) -> Kind:
    """Whole numbers, also with the k or M that people write for 1,024 and 1,048,576 tokens, samples or GPUs."""
    plain = whole(least, most, usual=usual)

    def check(value: object) -> int:
        made = binary_count(value) if isinstance(value, str) else None
        if isinstance(made, float):
            raise InvalidArgumentError(f"'{shown(value)}' is not a whole number", remedy="32k (which is 32,768)")
        return int(plain.check(value if made is None else made))

    return replace(plain, check=check)


def number(least: float, most: float, what: str, words: str, *, above: bool = False, example: str = "") -> Kind:
    """Numbers in a range; text is accepted, too. `above`: the range excludes `least`."""

    def check(value: object) -> float:
        try:
            parsed = float(value) if isinstance(value, str | Real) and not isinstance(value, bool) else math.nan
        except (ValueError, OverflowError):
            parsed = math.nan
        if not least <= parsed <= most or (above and parsed == least):
            raise InvalidArgumentError(
                f"must be {what}, not '{shown(value)}'",
                remedy="{this=" + f"{_typical(least, most):g}" + "}" + (f" ({example})" if example else ""),
            )
        return parsed

    return Kind(words, check, python="float", checked="float", rust="f64")


def _typical(least: float, most: float) -> float:
    """Return a value to propose: 1, or the nearest to it."""
    return min(max(1.0, least), most)


def share(least: float, what: str, words: str, usual: float) -> Kind:
    """Shares from `least` to 1; `60%` is accepted, too, and 60 is proposed to be 0.6. `usual`: the one to try else."""
    plain = number(least, 1, f"{what}, {least:g} to 1", words)

    def check(value: object) -> float:
        if isinstance(value, str) and value.strip().endswith("%"):
            with suppress(ValueError):
                value = float(value.strip()[:-1]) / 100
        try:
            return float(plain.check(value))
        except InvalidArgumentError as error:
            typed = shown(value)
            near = int(typed) / 100 if typed.isdecimal() and 1 < int(typed) <= 100 else usual
            raise InvalidArgumentError(error.reason, remedy=f"{{this={near:g}}}") from None

    return replace(plain, check=check)


def factor(example: str) -> Kind:
    """Positive factors such as 2 or 0.5; `example` says what one means."""
    return number(1e-6, 1e6, "a factor, 0.000001-1000000", "X", example=example)


def _refuse_list(value: object) -> None:
    """Raise InvalidArgumentError for a list where one name is wanted."""
    if isinstance(value, list | tuple):
        raise InvalidArgumentError(
            f"{shown(value, repr)} is a list, and one value is expected",
            remedy="one of them (paceline.sweep takes lists of the settings marked * by paceline simulate -h)",
        )


def choice(
    choices: tuple[str, ...],
    aliases: Mapping[str, str] = MappingProxyType({}),
    *,
    meant: Mapping[str, str] = MappingProxyType({}),
    why: Mapping[str, str] = MappingProxyType({}),
    literal: str = "",
    rust: str = "",
) -> Kind:
    """One of several names, or an alias of one.

    Args:
        choices: The names.
        aliases: Names by alias.
        meant: Names to propose by words of trainers that are refused, as they mean something else, or more than that.
        why: By some of these words, why they are refused.
        literal: What their type is called in `paceline.catalog.names`.
        rust: The enum of the core, with a variant for each.
    """
    by_lower_case: Mapping[object, str] = {one.lower(): aliases.get(one, one) for one in (*aliases, *choices)}

    def check(value: object) -> str:
        _refuse_list(value)
        name = by_lower_case.get(value.strip().lower(), value) if isinstance(value, str) else value
        if name in choices:
            return str(name)
        word = shown(value).lower().replace("_", "-")
        near = meant.get(word) or nearest(shown(value), [*choices, *aliases])
        known = "" if near and len(choices) > _FEW else f" (one of {', '.join(choices)})"
        reason = f"'{shown(value)}' {why[word]}" if word in why else f"unknown value '{shown(value)}'"
        raise InvalidArgumentError(reason, remedy=f"{{this={near or choices[0]}}}{known}")

    python = f"names.{literal}" if literal else "str"
    return Kind("|".join(choices), check, choices, literal=literal, python=python, rust=rust)


def several(kind: Kind, same: Callable[[Any], object] = lambda value: value) -> Kind:
    """Lists of values, separated by commas in text. No duplicates; two values are equal if `same` maps them alike."""

    def check(value: object) -> list[Any]:
        if isinstance(value, str):
            typed = [word.strip() for word in value.split(",")]
            words: Sequence[object] = typed
            if not all(typed):
                raise InvalidArgumentError(
                    f"'{value[:80]}' has an empty item",
                    remedy=",".join(filter(None, typed)) or "{this=8} (values with one comma between them)",
                )
        elif isinstance(value, Sequence):
            words = value
            if not words:
                raise InvalidArgumentError("an empty list of values", remedy="drop {this}")
        else:
            words = [value]
        made: list[Any] = []
        for word in words:
            one = kind.check(word)
            if same(one) in [same(other) for other in made]:
                raise InvalidArgumentError(f"{shown(word)} is listed twice", remedy=f"{shown(word)} once")
            made.append(one)
        return made

    python = _or_several(kind.python)
    return replace(kind, words=f"{kind.words},…", check=check, choices=(), is_list=True, literal="", python=python)


def _or_several(python: str) -> str:
    """Return the annotation of one value or several."""
    return f"{python} | Sequence[{python}]"


def names_of(find: Callable[[str], str], words: str = "NAME,…", python: str = "str") -> Kind:
    """Lists of names. Duplicates are dropped, because aliases mean the same."""

    def check(value: object) -> list[str]:
        texts = value.split(",") if isinstance(value, str) else value if isinstance(value, Sequence) else [value]
        parts = [word.strip() for word in map(text, texts) if word.strip()]
        if not parts:
            raise InvalidArgumentError(f"'{shown(value)}' names nothing", remedy="drop {this}")
        return list(dict.fromkeys(find(word) for word in parts))

    return Kind(words, check, is_list=True, python=_or_several(python))


def _lower(value: object) -> object:
    """Return text in lower case, other values as they are."""
    return value.lower() if isinstance(value, str) else value


def or_auto(kind: Kind) -> Kind:
    """A value of another kind, or None for `auto`."""
    return replace(
        kind,
        words=f"auto|{kind.words}",
        check=lambda value: None if _lower(value) == "auto" else kind.check(value),
    )


def typed(kind: Kind) -> Kind:
    """The same kind, but the text stays as typed once it has been checked."""

    def check(value: object) -> Any:  # noqa: ANN401
        checked = kind.check(value)
        return value if isinstance(value, str) and not isinstance(checked, str) else checked

    return replace(kind, check=check)


def _sequence(value: object) -> int:
    if _lower(value) == "max":
        raise longest_refused()
    return int(_LENGTH.check(value))


def longest_refused() -> InvalidArgumentError:
    """Return the error about a longest sequence where nothing finds it."""
    return InvalidArgumentError(
        "max is for paceline simulate, which finds the longest sequence that fits",
        setting="seq",
        remedy="{this=4096}, or paceline simulate MODEL … {this=max}",
    )


def or_word(word: str, kind: Kind) -> Kind:
    """A word that stands for itself, or a value of another kind."""

    def check(value: object) -> Any:  # noqa: ANN401
        given = _lower(value)
        if given == word:
            return word
        try:
            return kind.check(value)
        except InvalidArgumentError:
            if isinstance(given, str) and (given.startswith(word) or nearest(given, [word])):
                raise InvalidArgumentError(f"'{shown(value)}' is unknown", remedy=f"{{this={word}}}") from None
            raise

    return replace(
        kind,
        words=f"{word}|{kind.words}",
        check=check,
        python=kind.python if "str" in kind.python.split(" | ") else f"{kind.python} | str",
    )


def text(value: object) -> str:
    """Text that is valid UTF-8, so that it can be passed to other programs."""
    _refuse_list(value)
    if not isinstance(value, str):
        raise InvalidArgumentError(
            f"{shown(value, repr)} is not text", remedy=f"{{this={shown(value)}}} (in quotation marks)"
        )
    try:
        value.encode()
    except UnicodeEncodeError:
        raise InvalidArgumentError("is not UTF-8 text", remedy="UTF-8 text") from None
    return value


def _printable(value: object) -> str:
    if not (name := text(value)).isprintable():
        raise InvalidArgumentError("contains characters that cannot be printed", remedy="a name in one line")
    return name


_DAYS = {"h": 3600.0, "d": 86_400.0}


def _long_time(value: object) -> float:
    """Hours and days beside the units of other times."""
    word = text(value)
    wrong = InvalidArgumentError(f"'{word[:40]}' is not a time above 0", remedy="8h, 2.5d or 30min")
    if word.replace(".", "", 1).isdigit():
        raise InvalidArgumentError(f"'{word[:40]}' has no unit", remedy=f"{word[:40]}h or {word[:40]}d")
    try:
        seconds = float(word[:-1]) * _DAYS[word[-1:]] if word[-1:] in _DAYS else _core.parse_time(word)
    except ValueError as error:
        raise error if isinstance(error, InvalidArgumentError) else wrong from None
    if not 0 < seconds < 1e10:
        raise wrong
    return seconds


def _power(value: object) -> float:
    """Watts above 0, with their unit."""
    # A number lacks its unit, as its digits in text do.
    is_number = isinstance(value, int) and not isinstance(value, bool)
    word = f"{value:g}" if isinstance(value, float) else shown(value) if is_number else text(value)
    watts = units.watts(word)
    if watts is None or not watts:
        typed = word if word.isascii() and word.isdigit() and word.strip("0") else "500"
        raise InvalidArgumentError(f"'{word[:40]}' is not a power with its unit", remedy=f"{{this={typed[:6]}W}}")
    return watts


_AMOUNT = number(
    0, 1e6, "a price above 0 and at most 1000000", "MONEY", above=True, example="2.50 and $2.50 are the same"
)
_CURRENCY = re.compile(r"(?:[A-Z]{0,3}[$€£¥]|[A-Z]{3}\b)?\s*([\d.,eE+-]*?)\s*(?:[$€£¥]|\b[A-Z]{3})?", re.ASCII)


def _money(value: object) -> float:
    """The number of an amount such as `2.50`, `$2.50` or `2.50 EUR`."""
    match = _CURRENCY.fullmatch(value.strip()) if isinstance(value, str) else None
    amount: float = _AMOUNT.check(value if match is None or not match[1] else match[1])
    return amount


def _prices(value: object) -> dict[str, float]:
    """Prices by the name of a GPU or cluster; without a name, of all: `2.50`, `h100:2.50,a100:1.20`."""
    if not isinstance(value, str) or ":" not in value:
        return {"": _money(value)}
    prices = {}
    for part in value.split(","):
        name, colon, amount = part.strip().rpartition(":")
        if not (colon and name):
            raise InvalidArgumentError(f"'{shown(part)}' is no price of a machine", remedy="{this=h100:2.50,a100:1.20}")
        if name in prices:
            raise InvalidArgumentError(f"has two prices of {shown(name)}", remedy="drop one")
        prices[name] = _money(amount)
    return prices


_TOKENS = re.compile(r"([\d.]+(?:[eE]\+?\d+)?)\s*([kKMBT]?)", re.ASCII)
_UNITS = {"": 1.0, "k": 1e3, "M": 1e6, "B": 1e9, "T": 1e12}
_MOST_TOKENS = 1e15
"""Published runs train on some 1e13."""
_COUNT_OF_TOKENS = number(1, _MOST_TOKENS, "a number of tokens", "N")


def _tokens(value: object) -> float:
    """A number of tokens, also as people write them: `1e9`, `1B`, `15T`."""
    match = _TOKENS.fullmatch(value.strip()) if isinstance(value, str) else None
    with suppress(ValueError):
        plain = math.nan if match is None else float(match[1])
        count: float = _COUNT_OF_TOKENS.check(value if match is None else plain * _UNITS[match[2].replace("K", "k")])
        return count
    # `1e9B` has its unit twice.
    is_whole = match is not None and bool(match[2]) and 1e6 <= plain <= _MOST_TOKENS
    near = match[1] if match is not None and is_whole else "1e9"
    raise InvalidArgumentError(
        f"must be a number of tokens, at most {_MOST_TOKENS / 1e12:,.0f}T, not '{shown(value)}'",
        remedy=f"{{this={near}}} (1e9 and 1B are the same)",
    )


def _degraded(value: object) -> dict[str, Any]:
    if isinstance(value, Mapping):
        if set(value) != {"link", "factor"} or not isinstance(value["link"], str):
            raise InvalidArgumentError(
                f"{shown(dict(value), repr)} is not a link and what is left of its rate",
                remedy='{link = "leaf0-spine1", factor = 0.5}',
            )
        return dict(value)
    link, colon, factor = text(value).rpartition(":")
    try:
        left = float(factor)
    except ValueError:
        left = math.nan
    if not (colon and link.strip() and 0 <= left <= 1):
        raise InvalidArgumentError(
            f"'{shown(value)}' is not LINK:FACTOR, a link and what is left of its rate, 0-1",
            remedy=f"{link.strip() or 'leaf0-spine1'}:0.5 (0 removes the link)",
        )
    return {"link": link.strip(), "factor": left}


def _switch(value: object) -> bool:
    yes, no = ("1", "true", "yes", "on"), ("0", "false", "no", "off")
    word = shown(value).lower()
    if word not in (*yes, *no):
        raise InvalidArgumentError(
            f"must be 1 or 0, not '{shown(value)}'", remedy="{this=1} (1, true, yes, on; 0, false, no, off)"
        )
    return word in yes


def _adapter(value: object) -> str:
    """The rank of adapters and their modules, as typed once it has been checked; or `none`."""
    word = shown(value) if _integer(value) is not None else text(value)
    if word.lower() == NONE:
        return NONE
    parse_adapter(word)
    return word


def _offload(value: object) -> str:
    """A place of the host and parts, in lower case once it has been checked; or `none`."""
    word = text(value).lower()
    if word == NONE:
        return NONE
    parse_offload(word)
    return word


def _strategy(value: object) -> str:
    _refuse_list(value)
    return find_strategy(text(value)).name


def _job_strategy(value: object) -> str:
    return BAIDU_RING if value == BAIDU_RING else _strategy(value)


SHARDINGS = ("none", "zero1", "zero2", "zero3", "hsdp")
_FEW = 8
"""Most names of a choice that an error lists beside the nearest."""
_SHARDING_ALIASES = {"ddp": "none", "fsdp": "zero3", "zero-1": "zero1", "zero-2": "zero2", "zero-3": "zero3"}


def _sharding(value: object) -> str:
    """Return the main name: `fsdp` is `zero3`. `hsdp:8` and `zero1:8` keep their number of ranks."""
    _refuse_list(value)
    word = shown(value).strip().lower()
    name, colon, ranks = word.partition(":")
    name = _SHARDING_ALIASES.get(name, name)
    if name not in SHARDINGS:
        near = nearest(name, [*SHARDINGS, *_SHARDING_ALIASES])
        known = f"{', '.join(SHARDINGS)}, or hsdp:RANKS, zero1:RANKS, zero2:RANKS"
        raise InvalidArgumentError(f"unknown sharding '{word}'", remedy=f"{near or 'zero3'} (one of {known})")
    if not colon:
        return name
    if name == "zero3":
        raise InvalidArgumentError(f"'{word}': zero3 over a part of the ranks is hsdp", remedy=f"{{this=hsdp:{ranks}}}")
    if name == "none":
        raise InvalidArgumentError(
            f"'{word}': none takes no number of ranks", remedy=f"{{this=hsdp:{ranks}}}, zero1:{ranks} or zero2:{ranks}"
        )
    return f"{name}:{whole(1, MOST_WORKERS).check(ranks)}"


def _compression(value: object) -> str:
    """Return the name with its parameter: `powersgd` is `powersgd:4`."""
    _refuse_list(value)
    return compression.parse(shown(value)).name


def _measured_compression(value: object) -> str:
    if (name := _compression(value)) == compression.NONE:
        raise InvalidArgumentError("none takes no time", remedy="{this=fp16}")
    return name


def _reshard(value: object) -> str | int:
    if value is True or value is False:
        return "yes" if value else "no"
    if (word := _lower(value)) in ("yes", "no"):
        return str(word)
    try:
        return int(whole(1, MOST_WORKERS).check(value))
    except InvalidArgumentError:
        raise InvalidArgumentError(
            f"must be yes, no or a number of ranks, not '{shown(value)}'", remedy="{this=no}"
        ) from None


def _size(value: object) -> int:
    if isinstance(value, str):
        return _core.parse_size(value)
    if (size := _integer(value)) is not None and 0 < size < 2**64:
        return size
    raise InvalidArgumentError(f"must be a size above 0 bytes, not {shown(value)}", remedy="{this=512KiB}")


def _memory(value: object) -> int:
    if isinstance(value, str) and re.fullmatch(r"\d+(\.\d+)?", value.strip()):
        raise InvalidArgumentError(f"'{shown(value)}' has no unit", remedy=f"{shown(value.strip())}GB")
    return _size(value)


def _chunk(value: object) -> str | int:
    if (word := _lower(value)) in ("whole", "per-worker"):
        return str(word)
    try:
        return _size(value)
    except InvalidArgumentError as error:
        raise InvalidArgumentError(error.reason, remedy=f"{error.remedy}, whole or per-worker") from None


def _as_typed(parse: Callable[[str], object], example: str) -> Callable[[object], str]:
    def check(value: object) -> str:
        if not isinstance(value, str):
            raise InvalidArgumentError(f"'{shown(value)}' has no unit", remedy=f"{{this={example}}}")
        value = value.replace("\N{GREEK SMALL LETTER MU}", "\N{MICRO SIGN}")  # keyboards have either
        parse(value)
        return value

    return check


_SLOWNESS = number(0.01, 1000, "a factor, 0.01-1000", "X")
_ONE_STRAGGLER = "{this=13:1.2} (rank 13 takes 1.2 times as long)"
_RANK = whole(0, MOST_WORKERS - 1)


def _rank_and_factor(word: str) -> tuple[str, str]:
    rank, colon, slowness = word.strip().partition(":")
    if not colon:
        raise InvalidArgumentError(f"'{word[:80]}' is not RANK:FACTOR", remedy=_ONE_STRAGGLER)
    return rank, slowness


def _stragglers(value: object) -> list[dict[str, Any]]:
    """Text such as `13:1.2,5:2`, factors by rank, or the list of a cluster file, which its parser checks."""
    if isinstance(value, list) and all(isinstance(one, dict) for one in value):
        return value
    if not isinstance(value, str | Mapping):
        raise InvalidArgumentError(f"{shown(value, repr)} is not ranks and factors", remedy=_ONE_STRAGGLER)
    made: dict[int, float] = {}
    for rank, slowness in value.items() if isinstance(value, Mapping) else map(_rank_and_factor, value.split(",")):
        try:
            number_of = _RANK.check(rank)
        except InvalidArgumentError as error:
            raise InvalidArgumentError(f"a rank {error.reason}", remedy=_ONE_STRAGGLER) from None
        if number_of in made:
            raise InvalidArgumentError(f"rank {number_of} is listed twice", remedy="each rank once")
        try:
            made[number_of] = _SLOWNESS.check(slowness)
        except InvalidArgumentError as error:
            raise InvalidArgumentError(error.reason, remedy=_ONE_STRAGGLER) from None
    return [{"rank": rank, "factor": slowness} for rank, slowness in made.items()]


def _interface(value: object) -> str:
    name = text(value)
    check_interface(name)
    return name


def _nics(value: object) -> tuple[str, ...]:
    """One network, in a list or by itself. The job's nodes have it, not necessarily this machine."""
    if not isinstance(value, Iterable):
        raise InvalidArgumentError(f"{shown(value, repr)} is not a list of networks", remedy="['10.0.0.0/24']")
    nics = [value] if isinstance(value, str) else list(value)
    if len(nics) != 1:
        raise InvalidArgumentError(
            f"must be one network that all nodes have, not {shown(nics, repr)}", remedy="['10.0.0.0/24']"
        )
    return (text(nics[0]),)


def _secret(value: object) -> str:
    secret = text(value)
    if len(secret) < SHORTEST_SECRET:
        raise InvalidArgumentError(
            f"must have at least {SHORTEST_SECRET} characters, not {len(secret)}",
            remedy="openssl rand -hex 32 (prints one)",
        )
    return secret


def _secret_file(value: object) -> str:
    """The secret in a file that only its owner can read."""
    if not isinstance(value, str | Path):
        raise InvalidArgumentError(f"{shown(value, repr)} is not a path", remedy="a str or a Path")
    path = Path(value)
    try:
        mode = stat.S_IMODE(path.stat().st_mode)
        if mode & 0o077:
            raise InvalidArgumentError(f"{path}: other users can read it (mode {mode:o})", remedy=f"chmod 600 {path}")
        secret = read_small(path).strip()
    except (OSError, UnicodeDecodeError, ValueError) as error:
        if isinstance(error, InvalidArgumentError):
            raise
        reason = error.strerror if isinstance(error, OSError) else "is not text"
        raise InvalidArgumentError(
            f"{path}: {reason}", remedy=f"openssl rand -hex 32 > {path}; chmod 600 {path}"
        ) from None
    try:
        return _secret(secret)
    except InvalidArgumentError as error:
        raise InvalidArgumentError(f"{path}: {error.reason}", remedy=f"openssl rand -hex 32 > {path}") from None


def _rendezvous(value: object) -> str:
    address = text(value)
    host, colon, port = address.rpartition(":")
    bare = host.strip("[]")
    bracketed = host.startswith("[") and host.endswith("]")
    numeric = port.isascii() and port.isdigit() and len(port) < 6 and 0 < int(port) < 65_536
    if not colon or not bare or not numeric or (":" in bare and not bracketed) or any(map(str.isspace, host)):
        raise InvalidArgumentError(f"'{address[:80]}' is not host:port", remedy="node1:29400, or [fd00::1]:29400")
    return address


def _multicast(value: object) -> str:
    address = text(value)
    group, _, port = address.rpartition(":")
    try:
        multicast = ipaddress.IPv4Address(group).is_multicast
    except ValueError:
        multicast = False
    if not multicast or not (port.isascii() and port.isdigit() and len(port) < 6 and 0 < int(port) < 65_536):
        raise InvalidArgumentError(
            f"'{address[:80]}' is not a multicast group (224.0.0.0-239.255.255.255) and a port",
            remedy="239.77.0.0:47700 (another group for each job)",
        )
    return f"{group}:{int(port)}"


def _placement(value: object) -> str:
    word = str(value) if isinstance(value, Path) else text(value)
    if word in PLACEMENTS:
        return word
    if not word:
        raise InvalidArgumentError("is empty", remedy=f"{{this={PLACEMENTS[0]}}}, {PLACEMENTS[-1]}, or a file")
    try:
        exists = Path(word).exists()
    except (OSError, ValueError):  # too long, or contains a NUL
        exists = False
    if not exists and word.lower() in PLACEMENTS:
        return word.lower()
    if not exists:
        near = nearest(word[:80], list(PLACEMENTS))
        raise InvalidArgumentError(
            f"no such file '{word[:80]}'",
            remedy=f"{{this={near or PLACEMENTS[0]}}} ({', '.join(PLACEMENTS)}, or a file)",
        )
    return str(Path(word).absolute())


_SERVER = whole(0, MOST_SERVERS - 1)


def _placement_or_servers(value: object) -> str | list[int]:
    return [_SERVER.check(server) for server in value] if isinstance(value, list) else _placement(value)


def _several_placements(value: object) -> list[Any]:
    """Several placements: words, files, or lists of servers by bucket. A list of numbers is one of these."""
    if not isinstance(value, list | tuple):
        return list(PLACEMENTS_LISTED.check(value))
    if value and all(_integer(one) is not None for one in value):
        return [_placement_or_servers(list(value))]
    made = [_placement_or_servers(list(one) if isinstance(one, tuple) else one) for one in value]
    if not made:
        raise InvalidArgumentError("an empty list of values", remedy="drop {this}")
    for place, one in enumerate(made):
        if one in made[:place]:
            raise InvalidArgumentError(f"{shown(one)} is listed twice", remedy=f"{shown(one)} once")
    return made


def _one_module(value: object) -> str:
    """A module and how many, whose text `Trace.with_modules` reads."""
    word = text(value).strip()
    kind, colon, number = word.rpartition(":")
    if not colon or not kind or not number:
        counted = f"{word.rstrip(':')}:1" if word.rstrip(":").endswith(".json") else "compute:25"
        raise InvalidArgumentError(f"'{shown(value)}' is not KIND:COUNT", remedy=f"{{this={counted:.200}}}")
    return word


def _modules(value: object) -> list[str]:
    """Modules such as `compute:0,5,25,network:5`: a number by itself is of the kind before it."""
    words = text(value).split(",") if isinstance(value, str) else value
    if not isinstance(words, Sequence) or not words:
        raise InvalidArgumentError(f"{shown(value, repr)} is not a list of modules", remedy="{this=compute:0,5,25}")
    made: list[str] = []
    for word in map(text, words):
        kind = made[-1].rpartition(":")[0] if made else ""
        is_number = word.strip().isascii() and word.strip().isdigit()
        one = _one_module(f"{kind}:{word.strip()}" if is_number and kind else word)
        if one in made:
            raise InvalidArgumentError(f"{shown(one)} is listed twice", remedy=f"{shown(one)} once")
        made.append(one)
    return made


ORDERS_BY_NAME = ("recorded", "forward", "reverse")


def _order(value: object) -> str:
    """An order in which servers send tensors: a word, `last:NAME`, `first:NAME`, or a file."""
    word = str(value) if isinstance(value, Path) else text(value)
    place, colon, name = word.partition(":")
    if word in ORDERS_BY_NAME or (place in ("first", "last") and colon and name):
        return word
    known = f"{', '.join(ORDERS_BY_NAME)}, first:NAME, last:NAME, or a file"
    if place in ("first", "last"):
        raise InvalidArgumentError(f"'{shown(word)}' names no tensors", remedy=f"{{this={place}:fc6}}")
    try:
        exists = bool(word) and Path(word).is_file()
    except (OSError, ValueError):
        exists = False
    if not exists and word.lower() in ORDERS_BY_NAME:
        return word.lower()
    if not exists:
        near = nearest(word[:80], [*ORDERS_BY_NAME, "first:", "last:"])
        raise InvalidArgumentError(f"no such file '{word[:80]}'", remedy=f"{{this={near or 'forward'}}} ({known})")
    return str(Path(word).absolute())


def _new_file(value: object) -> str:
    """An absolute path in a folder that exists."""
    if working_directory_is_gone():
        raise InvalidArgumentError(NO_WORKING_DIRECTORY, remedy="cd to a folder that exists")
    path = value if isinstance(value, Path) else Path(text(value))
    if str(path) == "-":
        raise InvalidArgumentError(f"-: {NO_DASH}", remedy="{this=/dev/stdout}")
    try:
        path = path.absolute()
        if not path.parent.is_dir():
            raise InvalidArgumentError(f"{path}: there is no folder {path.parent}", remedy=f"mkdir -p {path.parent}")
        if path.is_dir():
            raise InvalidArgumentError(f"{path}: is a folder", remedy="a file in it")
    except (OSError, ValueError) as error:
        if isinstance(error, InvalidArgumentError):
            raise
        raise InvalidArgumentError(f"'{shown(value)}' is not a path: {error}", remedy="another path") from None
    return str(path)


def _mpi_library(value: object) -> str:
    path = str(value) if isinstance(value, Path) else text(value)
    if not Path(path).exists():
        raise InvalidArgumentError(
            f"no such file or folder '{path[:200]}'", remedy="the path of libmpi_abi.so.1 or libmpi.so.40"
        )
    return path


def _ucx_library(value: object) -> str:
    path = str(value) if isinstance(value, Path) else text(value)
    if not Path(path).exists():
        raise InvalidArgumentError(
            f"no such file or folder '{path[:200]}'", remedy="the path of libucp.so.0, or drop {this}"
        )
    return path


def _cuda_library(value: object) -> str:
    path = str(value) if isinstance(value, Path) else text(value)
    if not Path(path).is_file():
        raise InvalidArgumentError(f"no such file '{path[:200]}'", remedy="the path of libcuda.so.1, or drop {this}")
    return path


def _nccl_library(value: object) -> str:
    path = str(value) if isinstance(value, Path) else text(value)
    if not Path(path).is_file():
        raise InvalidArgumentError(f"no such file '{path[:200]}'", remedy="the path of libnccl.so.2, or drop {this}")
    return path


def _oneccl_library(value: object) -> str:
    path = str(value) if isinstance(value, Path) else text(value)
    if not Path(path).is_file():
        raise InvalidArgumentError(
            f"no such file '{path[:200]}'", remedy="the path of libccl.so.2 (paceline bench --install oneccl prints it)"
        )
    return path


def _transport(value: object) -> str:
    kind, plus, tensors = shown(value).partition("+")
    if plus and kind == "grpc" and value not in _TRANSPORTS.choices:
        carriers = [name.removeprefix("grpc+") for name in _TRANSPORTS.choices if name.startswith("grpc+")]
        raise InvalidArgumentError(
            f"grpc combines with tensors over {', '.join(carriers[:-1])} or {carriers[-1]}, not '{tensors}'",
            remedy=f"{{this=grpc+{carriers[0]}}}, or {{this=grpc}} for both",
        )
    return str(_TRANSPORTS.check(value))


_TRANSPORTS = choice(
    ("auto", "shm", "tcp", "mpi", "grpc", "grpc+tcp", "grpc+mpi", "grpc+ucx", "grpc+verbs", "grpc+gdr"),
    literal="Transport",
    rust="crate::choices::Transport",
)
_SHARING = choice(("fifo", "fluid"), literal="Network", rust="crate::sharing::Network")


def _network(value: object) -> str:
    """How flows share a link; `paceline advise` calls a rate so."""
    try:
        return str(_SHARING.check(value))
    except InvalidArgumentError:
        try:
            _core.parse_rate(shown(value))
        except InvalidArgumentError:
            pass
        else:
            raise InvalidArgumentError(
                f"'{shown(value)}' is a rate, and this is how flows share a link",
                remedy=f"{{this=fifo}} or fluid (the rate is {{bandwidth={shown(value)}}})",
            ) from None
        raise


def _file(value: object) -> object:
    """A path; the reader says whether there is such a file."""
    return value if isinstance(value, Path) else text(value)


def _named_file(value: object) -> object:
    """A path or a name, or the cluster itself."""
    if isinstance(value, Mapping):
        raise InvalidArgumentError(
            f"{shown(value, repr)} is not text, a name or a file",
            remedy="a name (paceline list clusters), or fields as keywords: bandwidth='25Gbps', gpus_per_node=8",
        )
    return value if isinstance(value, _core.Cluster) else _file(value)


def _named_files(value: object) -> list[object]:
    """Paths or names, in a list or separated by commas; the path of an existing file may have commas."""
    if isinstance(value, str) and not Path(value).is_file():
        return [_named_file(part.strip()) for part in value.split(",") if part.strip()]
    return [_named_file(one) for one in value] if isinstance(value, list | tuple) else [_named_file(value)]


_PATH = "str | Path"
_DTYPES = tuple(DTYPE_BYTES)
_PRECISIONS = ("fp8", "bf16", "fp16", "tf32", "fp32")
TEXT = Kind("NAME", text)
PRINTABLE = Kind("NAME", _printable)
FILE = Kind("FILE", _file, python=_PATH)
NAMED_FILE = Kind("NAME|FILE", _named_file, python=_PATH)
SEVERAL_NAMED_FILES = Kind("NAME|FILE,…", _named_files, is_list=True, python=_or_several(_PATH))
CONSTANTS = Kind("NAME|FILE", _file, python=_PATH)
SWITCH = Kind("true|false", _switch, is_switch=True, python="bool", checked="bool", rust="bool")
STRATEGY = Kind("NAME", _strategy, python="names.Strategy")
JOB_STRATEGY = Kind("NAME", _job_strategy, python="names.Strategy")
STRATEGIES = names_of(lambda word: "all" if word.lower() == "all" else find_strategy(word).name)
COORDINATOR = Kind("NAME", lambda value: find_coordinator(text(value)), python="names.Coordinator | str")
ONE_COORDINATOR = Kind("NAME", lambda value: "none" if text(value).lower() == "none" else find_coordinator(text(value)))
COORDINATORS = replace(
    names_of(lambda word: word.lower() if word.lower() in ("all", "none") else find_coordinator(word)),
    words="NAME,…",
    python='names.Coordinator | Literal["none"] | Sequence[str]',
)
TRANSPORT = replace(_TRANSPORTS, check=_transport)
DISTRIBUTION = choice(("round-robin", "block"), literal="Distribution", rust="paceline_schedule::Distribution")
PULL = choice(("layer", "step"), literal="Pull")
STALENESS = replace(or_word("none", whole(0, MOST_STALENESS)), checked="int | str")
INSIDE = choice(("root", "ring"), literal="Inside", rust="paceline_schedule::Inside")
NATIVE = choice(("oneccl",))
CUDA = choice(("auto", "host", "ipc", "nccl", "mpi"), literal="Cuda", rust="crate::choices::CudaBy")
NETWORK = replace(_SHARING, check=_network)
GRADIENT_DTYPE = choice(_DTYPES, literal="Dtype")
PRECISION = choice(_PRECISIONS, literal="Precision")
DTYPE = replace(choice((*_DTYPES, *_PRECISIONS)), python="names.Dtype | names.Precision")
ONE_DTYPE = replace(choice(_DTYPES, SHORT_DTYPES), python="names.Dtype | names.ShortDtype")
ATTENTION = choice(
    ("flash", "flash-1", "flash-2", "efficient", "unfused"),
    # transformers' names.
    {"sdpa": "flash", "flash_attention_2": "flash-2", "eager": "unfused"},
    meant={
        **dict.fromkeys(("flash-3", "flash-attention-3", "flash-attn", "flash-attention", "xformers", "true"), "flash"),
        **dict.fromkeys(("math", "false", "none"), "unfused"),
        "flash-attn-2": "flash-2",
        **dict.fromkeys(("mem-efficient", "memory-efficient", "masked", "padded"), "efficient"),
    },
    literal="Attention",
)
CHECKPOINTING = choice(
    ("none", "selective", "full", "reentrant", "offload"),
    meant={
        **dict.fromkeys(("true", "yes", "on", "1"), "full"),
        **dict.fromkeys(("false", "no", "off", "0"), "none"),
        "unsloth": "offload",
    },
    literal="Checkpointing",
)
KERNELS = choice(
    ("eager", "fused", "compiled", "transformer-engine"),
    meant={"liger": "fused", "unsloth": "fused", "torch.compile": "compiled", "te": "transformer-engine"},
    literal="Kernels",
)
RECIPE = choice(
    (
        *("mixed", "o2", "megatron", "fp8", "fsdp-mixed", "bf16"),
        *("amp-bf16", "amp-fp16", "upcast-bf16", "upcast-fp16", "fp32"),
    ),
    # Lightning's names.
    {"bf16-mixed": "amp-bf16", "16-mixed": "amp-fp16", "bf16-true": "bf16", "32-true": "fp32"},
    meant={"fp16": "amp-fp16", "16": "amp-fp16", "float16": "amp-fp16", "tf32": "fp32", "32": "fp32"},
    literal="Recipe",
)
EXPERT_DISPATCH = choice(("alltoall", "deepep"), {"hybridep": "deepep"}, literal="ExpertDispatch")
MOMENT_DTYPE = choice(("bf16", "fp16", "fp32"), literal="MomentDtype")
LOSS_DTYPE = choice(("bf16", "fp16", "fp32"), literal="LossDtype")
OPTIMIZER_IMPL = choice(("fused", "foreach", "loop", "in-backward"), literal="OptimizerImpl")
SHARDING = Kind("NAME", _sharding)
SEVERAL_SHARDINGS = names_of(_sharding)
COMPRESSION = Kind("NAME", _compression)
SEVERAL_COMPRESSIONS = names_of(_compression)
MEASURED_COMPRESSIONS = names_of(_measured_compression)
RESHARD = Kind("yes|no|N", _reshard, python='Literal["yes", "no"] | bool | int')
OPTIMIZER = choice(tuple(optimizers.KINDS), optimizers.ALIASES, literal="Optimizer")
QUANTIZATION = choice(
    ("nf4", "nf4-double", "int8", "gptq-int4", NONE),
    meant={
        **dict.fromkeys(("4bit", "4-bit", "4", "fp4", "bnb", "qlora", "true"), "nf4"),
        **dict.fromkeys(("8bit", "8-bit", "8"), "int8"),
        **dict.fromkeys(("int4", "gptq", "awq"), "gptq-int4"),
    },
    literal="Quantization",
)
LOSS = choice(
    tuple(losses.LOSSES),
    meant={"sft": "lm", **dict.fromkeys(losses.GENERATING, "lm")},
    why=dict.fromkeys(
        losses.GENERATING, "generates samples in each step, which is not forecast; lm is the update alone"
    ),
    literal="Loss",
)
OFFLOAD = Kind("none|cpu|nvme[:PART,…]", _offload, short="cpu|nvme")
ADAPTER = Kind("none|RANK[:MODULES]", _adapter, python="str | int", short="RANK[:MODULES]")
LOSS_CHUNKS = or_word(NONE, whole(1, 4096))
PATTERNS = names_of(str, "PATTERN,…", python="str")
MODULE_NAMES = names_of(str, "MODULE,…", python="str")
LIBRARY = Kind("NAME", lambda value: find_library(text(value)).spec, python="names.LibraryName")
LIBRARIES = several(LIBRARY)
CHANNEL = choice(("auto", "none", "tcp", "rdma"), literal="Channel")
EXECUTOR = choice(("local", "ray"), literal="Executor")
WORKERS = count(1, MOST_WORKERS)
SEVERAL_WORKERS = several(WORKERS)
BATCH = count(1, 2**32 - 1)
GLOBAL_BATCH = count(1, 2**31)
_LENGTH = count(1, 2**24, usual=4096)
SEQUENCE = replace(_LENGTH, check=_sequence)
SERVERS = whole(1, MOST_SERVERS)
SEVERAL_SERVERS = several(SERVERS)
_BYTES = "int | str"
SIZE = Kind("SIZE", _size, python=_BYTES, checked="int")
MEMORY = Kind("SIZE", _memory, python=_BYTES)
BUCKET_SIZE = or_word("none", SIZE)
BUCKET_SIZES = several(BUCKET_SIZE)
CHUNK = Kind("whole|per-worker|SIZE", _chunk, python='Literal["whole", "per-worker"] | str | int', checked="str | int")
_PLACED = 'Literal["round-robin", "tensorflow", "even"] | str | Path'
PLACEMENT = Kind(
    "round-robin|tensorflow|even|FILE",
    _placement,
    python=_PLACED,
    rust="paceline_schedule::Placement",
    short="NAME|FILE",
)
PLACEMENT_OR_SERVERS = replace(PLACEMENT, check=_placement_or_servers, python=f"{_PLACED} | list[int]")
CHUNKS = several(CHUNK)
PLACEMENTS_LISTED = replace(several(PLACEMENT, same=str), short="NAME,…")
SEVERAL_PLACEMENTS = replace(
    PLACEMENTS_LISTED, check=_several_placements, python="str | Path | list[int] | Sequence[str | Path | list[int]]"
)
DISTRIBUTIONS = several(DISTRIBUTION)
GPUS_PER_NODE = whole(1, 1024)
SEVERAL_GPUS_PER_NODE = several(GPUS_PER_NODE)
MODULE = Kind("KIND:N", _one_module)
MODULES = replace(MODULE, words="KIND:N,…", check=_modules, is_list=True, python=_or_several("str"))
ORDER = Kind("NAME|FILE", _order, python=_PATH)
ORDERS = replace(several(ORDER, same=str), short="NAME,…")
RATE = Kind("RATE", _as_typed(_core.parse_rate, "25Gbps"))
RATES = several(RATE, same=_core.parse_rate)
DEGRADED = replace(
    several(Kind("LINK:X", _degraded), same=lambda one: one["link"]),
    is_list=False,
    python="Sequence[dict[str, Any]] | str",
)
TIME = Kind("TIME", _as_typed(_core.parse_time, "10us"))
TIMES = several(TIME, same=_core.parse_time)
STRAGGLERS = Kind("RANK:X,…", _stragglers, python="str | Mapping[int, float] | list[dict[str, Any]]")
SECONDS = number(
    0,
    LONGEST_TIMEOUT_S,
    f"a number of seconds above 0 and up to {LONGEST_TIMEOUT_S:.0f}",
    "SECONDS",
    above=True,
    example="write 30",
)
POSITIVE = number(0, math.nextafter(math.inf, 0), "a number above 0", "NUMBER", above=True)
POSITIVE_SECONDS = replace(POSITIVE, words="SECONDS")
PRICES = Kind("MONEY", _prices)
TOKENS = Kind("N", _tokens)
LONG_TIME = Kind("TIME", _long_time)
POWER = Kind("WATTS", _power)
POWERS = several(POWER)
DURATION = Kind("TIME", lambda value: _core.parse_time(text(value)))
RATE_OF_SAMPLES = number(0, 1e12, "a number above 0, at most 1e12", "NUMBER", above=True)
SPEEDUP = factor("2 means twice as fast")
SPEEDUPS = several(SPEEDUP)
SYNC_EVERY = whole(1, 100_000)
SEED = whole(0, 2**64 - 1)
INTERFACE = Kind("NAME|NETWORK", _interface)
NICS = Kind("[NAME|NETWORK]", _nics)
SECRET = Kind("TEXT", _secret)
SECRET_FILE = Kind("FILE", _secret_file, python=_PATH)
RENDEZVOUS = Kind("HOST:PORT", _rendezvous)
MULTICAST = Kind("GROUP:PORT", _multicast)
NEW_FILE = Kind("FILE", _new_file, python=_PATH)
MPI_LIBRARY = Kind("FILE|DIR", _mpi_library, python=_PATH)
UCX_LIBRARY = Kind("FILE|DIR", _ucx_library, python=_PATH)
CUDA_LIBRARY = Kind("FILE", _cuda_library, python=_PATH)
NCCL_LIBRARY = Kind("FILE", _nccl_library, python=_PATH)
ONECCL_LIBRARY = Kind("FILE", _oneccl_library, python=_PATH)
