"""What an error says to type, typed: command lines that follow its remedy."""

import re
import shlex
from collections.abc import Iterator, Sequence

import click
from paceline.cli.main import main

PLACEHOLDERS = {"N": "8", "NAME": "", "GPU": "h100", "MODEL": "llama-3-8b", "TRACE": "", "FILE": "mine.json"}


def command_of(words: Sequence[str]) -> click.Command:
    """Return the command that a line calls."""
    command: click.Command = main
    for word in words:
        if not isinstance(command, click.Group):
            break
        context = click.Context(command)
        command = command.get_command(context, word) or command
    return command


def has_value(words: Sequence[str], option: str) -> bool:
    """Whether a value follows an option of this line."""
    known = {name: one for one in command_of(words).params for name in (*one.opts, *one.secondary_opts)}
    one = known.get(option)
    return one is None or not (isinstance(one, click.Option) and (one.is_flag or one.count))


def without(words: Sequence[str], option: str) -> list[str]:
    """Return the line without an option and its values."""
    kept: list[str] = []
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if word == option:
            if rest and option.startswith("-") and has_value(words, option):
                rest.pop(0)
        elif not word.startswith(f"{option}="):
            kept.append(word)
    return kept


def other_names(words: Sequence[str], option: str) -> list[str]:
    """Return all names of an option, among them those of another one that means the same: --gpus and --workers."""
    same = next((pair for pair in (["--gpus", "--workers"],) if option in pair), [])
    names = [[*one.opts, *one.secondary_opts] for one in command_of(words).params]
    return [*same, *next((them for them in names if option in them), [option])]


def typed(words: Sequence[str], message: str, remedy: str) -> Iterator[list[str]]:
    """Return every command line that follows the remedy, in its order.

    A remedy names commands, options with a value, options to drop, or names and values to write for the quoted one.
    """
    advice, _, note = remedy.partition(" (")
    for placeholder, value in PLACEHOLDERS.items():
        advice = re.sub(rf"(?<![\w-]){placeholder}(?![\w-])", value, advice)
    wrong = re.findall(r"'([^']+)'", message) + re.findall(r"unknown option (\S+)", message)
    wrong = [word for word in wrong if any(word in one for one in words)]
    # Of a word with a size, `all-gather` in `all-gather:1GB`, the remedy has both.
    whole = [one for one in words for word in wrong[:1] if one.startswith(f"{word}:") and ":" in advice]
    wrong = [*whole, *wrong]
    pieces = [advice] if advice.startswith("paceline ") else re.split(r",? or |, (?!and drop )", advice)
    for piece in pieces:
        made, _, dropped = piece.partition(", and drop ")
        if made.startswith("drop "):
            made, dropped = "", made.removeprefix("drop ")
        parts = split(made)
        kept = list(words)
        for word in (part for part in split(dropped) if part != "and"):
            for name in other_names(words, word):
                kept = without(kept, name)
        if parts[:1] == ["paceline"]:
            yield parts[1:]
        elif parts and parts[0].startswith("-"):
            if len(parts) == 1 and wrong and wrong[0].startswith("-"):
                yield [parts[0] if word == wrong[0] else word for word in words]
                continue
            for option in (part for part in parts if part.startswith("-")):
                for name in other_names(words, option):
                    kept = without(kept, name)
            yield [*kept, *parts]
        elif not parts and kept != list(words):
            yield kept
        elif wrong and parts and (len(parts) == 1 or parts[1] == "for"):
            yield [parts[0].join(word.split(wrong[0])) for word in words]
    for command in re.findall(r"paceline ([a-z][^,)]*)", note):
        yield split(command)


def split(text: str) -> list[str]:
    """Return the words of a command line; of other text, what is between spaces."""
    try:
        return shlex.split(text)
    except ValueError:
        return text.split()
