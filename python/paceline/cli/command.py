"""The classes of all commands: a page of help in sections, and errors that say what to type."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import click

from paceline._internal.nearest import nearest
from paceline.cli.help_layout import WIDEST_NAMES, Formatter, Sections, rows
from paceline.cli.misuse import in_words, no_such_command, unexpected

_WHOLE = 1000
"""A length that no text has."""


class _Context(click.Context):
    formatter_class = Formatter


class Command(click.Command):
    """A command whose options are listed in sections.

    Options that belong to no section are listed in the last one.
    """

    context_class = _Context

    def __init__(self, *args: Any, sections: Sections | None = None, **others: Any) -> None:  # noqa: ANN401
        """`sections`: without them there is one, `Options`; those without options are left out."""
        super().__init__(*args, **others)
        self.sections: Sections = sections or {"Options": ()}

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse as click does, with errors in Paceline's words. Raises UsageError, and NoSuchOption as it is."""
        words = list(args)  # click takes them off the list.
        takes_more, ctx.allow_extra_args = ctx.allow_extra_args, True
        try:
            rest = super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            error.words = words  # type: ignore[attr-defined]
            raise
        except click.UsageError as error:
            raise in_words(error, ctx, words) from None
        finally:
            ctx.allow_extra_args = takes_more
        if rest and not takes_more and not ctx.resilient_parsing:
            raise unexpected(rest[0], ctx)
        return rest

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the sections."""
        assert isinstance(formatter, Formatter)
        listed_rows = {option.name or "": row for option, row in rows(self.get_params(ctx))}
        listed = {name for names in self.sections.values() for name in names}
        rest = [name for name in listed_rows if name not in listed]
        *_, last = self.sections
        lengths = [len(row.names) for row in listed_rows.values()]
        names = max((length for length in lengths if length <= WIDEST_NAMES), default=0)
        for title, members in self.sections.items():
            shown = [listed_rows[it] for it in (*members, *(rest if title == last else ())) if it in listed_rows]
            if shown:
                with formatter.section(title):
                    formatter.write_options(shown, names)


class Group(Command, click.Group):
    """A group whose page lists its commands, each with a whole sentence, and whose commands have the same layout."""

    command_class = Command

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands, then the options."""
        self.format_commands(ctx, formatter)
        super().format_options(ctx, formatter)

    def present_names(self, ctx: click.Context) -> Mapping[str, str]:
        """Return the names of the commands as they are typed, by all names that work."""
        return {name: name for name in self.list_commands(ctx)}

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Resolve as click does, and suggest a similar command. Raises UsageError."""
        name, known = args[0], self.present_names(ctx)
        if not name.startswith("-") and name not in known:
            near = nearest(name, list(known))
            raise no_such_command(name, known[near] if near else None, ctx)
        return super().resolve_command(ctx, args)

    def command_sections(self, ctx: click.Context) -> Mapping[str, Sequence[tuple[str, str]]]:
        """Return the commands and their texts by section."""
        commands = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        return {"Commands": [(name, one.get_short_help_str(_WHOLE)) for name, one in commands if one is not None]}

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands by section."""
        for title, texts in self.command_sections(ctx).items():
            with formatter.section(title):
                formatter.write_dl(texts)
