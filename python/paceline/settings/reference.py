"""The page docs/reference/settings.md, from the table: `python -m paceline.settings.reference [FILE]`."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from paceline.catalog.strategies import KNOBS, all_strategies
from paceline.settings.horovod import HOROVOD, REFUSED
from paceline.settings.table import FORECASTS, JOBS, JOIN, PLACES, RAY, SETTINGS, Setting, of_place

_ABOUT = """\
# Settings

<!-- Made by `python -m paceline.settings.reference docs/reference/settings.md` from python/paceline/settings. -->

A setting has the same name everywhere: as a command-line option, as a Python keyword, as a key of a
[report](../how-to/report.md), and, for settings of a job, as a `PACELINE_` variable. A value means the same everywhere,
and a mistake gives the same message, which names the source: `--chunk`, `PACELINE_CHUNK`, `chunk`, or
`report.toml: chapter 2: chunk`. Sizes are in bytes (`25MB`, `512KiB`), rates in bits per second (`25Gbps`), and times
have a unit (`10us`); Python also takes numbers of bytes and seconds.

## Of a job

Precedence, highest first: keywords in the script, `-x NAME=VALUE`, command-line options, environment variables.
Every rank reads the variables. An empty one counts as unset. An unknown `PACELINE_` variable is an error, because it
is most likely misspelt.

"""
_IDLE = """
Setting something that the strategy or the transport does not use is an error:

"""
_WITHOUT_STRATEGY = """
Without a strategy, `PACELINE_CHUNK` is an error when the job starts; servers, inside and multicast apply to
operations that name a strategy.

## Of a forecast

For `paceline simulate`, `paceline.simulate`, `paceline.sweep` and the chapters of a report. Python keywords may also be
any [field of a cluster file](cluster-format.md).

"""
_RAY = """
## Of a job on Ray

Fields of [RaySettings](../how-to/ray.md), in Python only. Other settings of the job are keywords of the executor.

"""
_DIFFERENT = """
## Where defaults differ

"""
_HOROVOD = """
## Of Horovod

`import paceline.torch as hvd` also reads these variables. An empty one counts as unset.

"""
_REFUSED = """
Paceline does not support these, and reports an error. It ignores variables of Horovod's build and launcher, and those
for MPI, CCL and NCCL.

"""
_LAST = """
## What `paceline run` sets

For each rank: `RANK`, `WORLD_SIZE`, `LOCAL_RANK`, `LOCAL_WORLD_SIZE`, `GROUP_RANK` (the node), `GROUP_WORLD_SIZE`,
`MASTER_ADDR` and `MASTER_PORT`, as torchrun does; also `PACELINE_RUN_ID` and `PYTHONUNBUFFERED=1`.

## For tests

`PACELINE_RUN_DISTURBANCE` makes multicast receivers drop, duplicate and reorder datagrams. It is JSON with rates from
0 to 1 and a seed: `{"lose": 0.2, "repeat": 0.1, "reorder": 0.1, "seed": 7}`.
"""


def page() -> str:
    """Return the page as Markdown."""
    settings = SETTINGS.values()
    jobs = [one for one in settings if one.variable]
    idle = [one for one in jobs if _users(one) or one.idle_with]
    different = [one for one in settings if len(set(_defaults(one)) - {""}) > 1]
    of_jobs = ("setting", "variable", "option", "value", "meaning", "default")
    of_forecasts = ("setting", "option", "in a report", "value", "meaning", "default")
    of_ray = ("setting", "value", "meaning", "default")
    of_horovod = ("variable", "value", "meaning", "default")
    return "".join(
        [
            _ABOUT,
            _table(of_jobs, map(_of_job, jobs)),
            _IDLE,
            _table(
                ("setting", "strategies that use it", "transports that do not"),
                ([_code(one.name), _users(one), _codes(one.idle_with)] for one in idle),
            ),
            _WITHOUT_STRATEGY,
            _table(of_forecasts, (_of_forecast(one) for one in settings if set(FORECASTS) & set(one.uses))),
            _RAY,
            _table(of_ray, ([_code(one.name), *_meaning(one, RAY)] for one in of_place(RAY))),
            _DIFFERENT,
            _table(("setting", *map(_code, PLACES)), ([_code(one.name), *_defaults(one)] for one in different)),
            _HOROVOD,
            _table(of_horovod, ([_code(one.variable), *_meaning(one)] for one in HOROVOD.values())),
            _REFUSED,
            _table(
                ("variable", "instead"), ([_code(name), _linked(refused.remedy)] for name, refused in REFUSED.items())
            ),
            _LAST,
        ]
    )


def _of_job(setting: Setting) -> list[str]:
    place = JOIN if JOIN in setting.uses else None
    return [_code(setting.name), _code(setting.variable), _flag(setting, JOBS), *_meaning(setting, place)]


def _of_forecast(setting: Setting) -> list[str]:
    place = next(place for place in FORECASTS if place in setting.uses)
    in_report = "yes" if "report" in setting.uses else ""
    return [_code(setting.name), _flag(setting, FORECASTS), in_report, *_meaning(setting, place)]


def _table(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [titles, ["---"] * len(titles), *rows]
    return "".join(f"| {' | '.join(word.replace('|', chr(92) + '|') for word in line)} |\n" for line in lines)


def _meaning(setting: Setting, place: str | None = None) -> list[str]:
    help_text = setting.help if place is None else setting.help_of(place)
    return [_value(setting, place), _linked(help_text), setting.default_text(place) or "none"]


def _value(setting: Setting, place: str | None = None) -> str:
    kind = setting.kind_of(place)
    if kind.is_switch:
        return "1, 0"
    return _codes(kind.choices) if kind.choices else _code(kind.words)


def _linked(text: str) -> str:
    """Turn paths of pages into links."""
    return re.sub(r"docs/([a-z-]+)/([a-z-]+)\.md", r"[\2](../\1/\2.md)", text)


def _flag(setting: Setting, places: Sequence[str]) -> str:
    commands = any(place in setting.uses and not place.startswith("paceline.") for place in places)
    return _codes(setting.flag.split("/")) if setting.flag and commands else ""


def _users(setting: Setting) -> str:
    knob = setting.name in (*KNOBS, "multicast")
    return _codes([one.name for one in all_strategies() if setting.name in one.knobs]) if knob else ""


def _defaults(setting: Setting) -> list[str]:
    return [setting.default_text(place) or "none" if place in setting.uses else "" for place in PLACES]


def _code(text: str) -> str:
    return f"`{text}`" if text else ""


def _codes(words: Iterable[str]) -> str:
    return ", ".join(map(_code, words))


if __name__ == "__main__":
    if len(sys.argv) > 1:
        Path(sys.argv[1]).write_text(page(), encoding="utf-8")
    else:
        sys.stdout.write(page())
