"""Kinds of option values: whole numbers, rates, sizes and lists of them. Errors name the option and the remedy."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

import click

from paceline import _core
from paceline.errors import InvalidArgumentError

T = TypeVar("T")


if TYPE_CHECKING:
    _ParamType = click.ParamType[object]
else:  # before click 8.4 it is not generic
    _ParamType = click.ParamType


class Value(_ParamType):
    """A value that a function makes of text; its InvalidArgumentError becomes the option's."""

    def __init__(self, name: str, parse: Callable[[str], object]) -> None:
        """`name` is what --help calls such a value."""
        self.name = name
        self._parse = parse

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> object:
        """Text to value."""
        if not isinstance(value, str):
            return value
        try:
            return self._parse(value)
        except InvalidArgumentError as error:
            self.fail(str(error), param, ctx)


def several(parse: Callable[[str], T]) -> Callable[[str], list[T]]:
    """A parser of comma-separated lists, in which nothing may stand twice."""

    def parse_list(text: str) -> list[T]:
        values: list[T] = []
        for word in text.split(","):
            if not word.strip():
                raise InvalidArgumentError(f"'{text[:80]}' has an empty place; separate values with one comma")
            value = parse(word.strip())
            if value in values:
                raise InvalidArgumentError(f"{word.strip()} is listed twice")
            values.append(value)
        return values

    return parse_list


def whole(least: int, most: int) -> Callable[[str], int]:
    """A parser of whole numbers."""

    def parse_whole(text: str) -> int:
        negative = text.startswith("-")
        digits = text.removeprefix("-")
        if not (digits.isascii() and digits.isdigit()):
            raise InvalidArgumentError(f"'{text[:80]}' is not a whole number; write for example 8 or 2,4,8")
        if negative or len(digits) > 20 or not least <= int(digits) <= most:
            raise InvalidArgumentError(f"{text[:80]} is not between {least} and {most}")
        return int(digits)

    return parse_whole


def factor_of(example: str) -> Callable[[str], float]:
    """A parser of positive factors such as 2 or 0.5; `example` says what one means."""

    def parse_factor(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not 1e-6 <= value <= 1e6:
            raise InvalidArgumentError(f"'{text[:80]}' is not a factor between 0.000001 and 1000000; {example}")
        return value

    return parse_factor


factor = factor_of("2 means twice as fast")


def positive(text: str) -> float:
    """A positive number."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (value > 0 and math.isfinite(value)):
        raise InvalidArgumentError(f"'{text[:80]}' is not a number above 0")
    return value


def chunk(text: str) -> str | int:
    """`whole`, `per-worker` or bytes."""
    return text if text in ("whole", "per-worker") else _core.parse_size(text)


def bucket_size(text: str) -> int | None:
    """`none` or bytes."""
    return None if text == "none" else _core.parse_size(text)


def words(text: str) -> list[str]:
    """Names, at least one."""
    found = [word.strip() for word in text.split(",") if word.strip()]
    if not found:
        raise InvalidArgumentError(f"'{text[:80]}' has no name; leave the option out for its default")
    return found


def checked(check: Callable[[str], object]) -> Callable[[str], str]:
    """A parser that leaves the text as it is, once `check` accepts it."""

    def parse(text: str) -> str:
        check(text)
        return text

    return parse


MOST_WORKERS = 60_000
BATCH = Value("N", whole(1, 2**32 - 1))
WORKERS = Value("N,…", several(whole(1, MOST_WORKERS)))
GPUS = Value("N", whole(1, 1024))
ITERATIONS = Value("N", whole(1, 100_000))
SEED = Value("N", whole(0, 2**64 - 1))
FACTORS = Value("FACTOR,…", several(factor))
SCALE = Value("FACTOR", factor_of("4 means four times as long"))
SHRINK = Value("FACTOR", factor_of("4 means a quarter of the bytes"))
WORDS = Value("NAME,…", words)
TIME = Value("TIME", checked(_core.parse_time))
SECONDS = Value("TIME", _core.parse_time)
RATE = Value("RATE", checked(_core.parse_rate))
POSITIVE = Value("NUMBER", positive)
CHUNK = Value("CHUNK", chunk)
BUCKET_SIZE = Value("SIZE", checked(bucket_size))


def _rates(text: str) -> list[str]:
    words = text.split(",")
    several(_core.parse_rate)(text)
    return [word.strip() for word in words]


RATES = Value("RATE,…", _rates)
