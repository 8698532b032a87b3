"""Errors that click finds in a command line, in Paceline's words, with what to type instead."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

import click

from paceline.cli.help_layout import examples, placeholder
from paceline.cli.usage import UsageError, called

_TYPICAL = {
    "N": "8",
    "X": "2",
    "SIZE": "25MB",
    "RATE": "25Gbps",
    "WATTS": "500W",
    "TIME": "5us",
    "SECONDS": "60",
    "NUMBER": "1",
    "MONEY": "2.50",
    "PORT": "8080",
    "SHARE": "0.6",
    "RANK[:MODULES]": "16",
    "MODULE": "lm_head",
    "PATTERN": "model.embed*",
    "VALUE": "2.8s@8",
    "FILE": "out.json",
    "DIR": "out",
}
"""Values by placeholder, for options that no example has."""


def in_words(error: click.UsageError, ctx: click.Context, words: Sequence[str] = ()) -> UsageError:
    """Return the error about a parameter that is missing, has no value, or has one that it does not take.

    `words`: what was typed behind the command, in which a missing option is put.
    """
    if isinstance(error, UsageError):
        return error
    if isinstance(error, click.BadOptionUsage):
        option = _option(error.option_name, ctx)
        if option is not None and option.is_flag:
            return UsageError(f"{error.option_name} takes no value", ctx, remedy=error.option_name)
        return UsageError(f"{error.option_name} needs a value", ctx, remedy=_with_value(error.option_name, ctx))
    if isinstance(error, click.BadParameter) and error.param is not None:
        name = error.param.opts[-1] if isinstance(error.param, click.Option) else _argument(error.param)
        if isinstance(error, click.MissingParameter) and isinstance(error.param, click.Option) and words:
            missing = _with_value(error.param.opts[0], ctx)
            return UsageError(f"{name} is missing", ctx, remedy=f"{called(ctx)} {missing} {shlex.join(words)}")
        if isinstance(error, click.MissingParameter):
            return UsageError(f"{name} is missing", ctx, remedy=_example(ctx, error.param))
        return UsageError(f"{name}: {error.message}", ctx, remedy=_example(ctx, error.param))
    return UsageError(error.message, ctx, remedy=_example(ctx))


def unexpected(word: str, ctx: click.Context) -> UsageError:
    """Return the error about an argument too many."""
    return UsageError(f"unexpected argument '{word[:80]}'", ctx, remedy=_example(ctx))


def no_such_command(name: str, near: str | None, ctx: click.Context) -> UsageError:
    """Return the error about an unknown command; `near` is one that is spelled alike."""
    own = called(ctx)
    remedy = f"{own} {near}" if near else f"{own} --help (lists commands)"
    return UsageError(f"no such command '{name[:80]}'", ctx, remedy=remedy)


def _example(ctx: click.Context, param: click.Parameter | None = None) -> str:
    """Return an example of the command's help, with this option if one has it."""
    every = examples(ctx.command)
    if isinstance(param, click.Option):
        every = [line for line in every if {*param.opts} & {*line.split()}] or [_with_value(param.opts[-1], ctx)]
    own = [line for line in every if f"{line} ".startswith(f"{called(ctx)} ")] or every
    return next(iter(own), f"{called(ctx)} --help")


def _with_value(name: str, ctx: click.Context) -> str:
    """Return an option with a value: that of an example, a typical one, or the first that the shell completes."""
    option = _option(name, ctx)
    if option is None:
        return f"{called(ctx)} --help"
    words = [line.split() for line in examples(ctx.command)]
    shown = [line[line.index(one) + 1] for line in words for one in option.opts if one in line[:-1]]
    of = placeholder(option)
    if shown:
        value = shown[0]
    elif (typical := _TYPICAL.get(of.removesuffix(",…"))) is not None:
        value = typical
    else:
        value = next((item.value for item in option.shell_complete(ctx, "") if item.type == "plain"), of)
    return f"{name} {value}"


def _option(name: str, ctx: click.Context) -> click.Option | None:
    options = [one for one in ctx.command.params if isinstance(one, click.Option)]
    return next((one for one in options if name in (*one.opts, *one.secondary_opts)), None)


def _argument(param: click.Parameter) -> str:
    return (getattr(param, "metavar", None) or (param.name or "").upper()).split()[0]
