"""Completion in bash and fish, where click's scripts cut values at a comma, a colon or an `@`."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from click.shell_completion import BashComplete, FishComplete, add_completion_class, split_arg_string

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem


class Bash(BashComplete):
    """Bash breaks words at `:`, `=` and `@` (COMP_WORDBREAKS), so the line is read, and the rest of a word answered."""

    source_template = BashComplete.source_template.replace(
        "COMP_CWORD=$COMP_CWORD",
        'COMP_CWORD=$COMP_CWORD COMP_BEFORE="${COMP_LINE:0:COMP_POINT}" COMP_BROKEN="${COMP_WORDS[COMP_CWORD]}"',
    )
    _kept = ""
    """The part of the word that bash keeps."""

    def get_completion_args(self) -> tuple[list[str], str]:
        """Return the words before the incomplete one, and that."""
        if not os.environ.get("COMP_BEFORE"):  # A script that an earlier version wrote.
            return super().get_completion_args()
        line, broken = os.environ["COMP_BEFORE"], os.environ.get("COMP_BROKEN", "")
        words = split_arg_string(line)
        word = words.pop() if words and not line[-1:].isspace() else ""
        if broken and word.endswith(broken) and any(letter.isalnum() for letter in broken):
            self._kept = word[: len(word) - len(broken)]
        elif broken:
            self._kept = word
        return words[1:], word

    def format_completion(self, item: CompletionItem[Any]) -> str:
        """Return the type, and the value without what bash keeps."""
        return f"{item.type},{item.value.removeprefix(self._kept)}"


class Fish(FishComplete):
    """Values may be lists, with commas."""

    source_template = FishComplete.source_template.replace('string split ","', 'string split -m 1 ","')


def register() -> None:
    """Let click use these."""
    for one in (Bash, Fish):
        add_completion_class(one)
