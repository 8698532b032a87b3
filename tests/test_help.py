"""What --help says: every option once, in sections, on 80 columns, with examples that can be typed."""

import os
import re
import shlex

import cli
import click
import pytest
from paceline.cli.command import Command, Group
from paceline.cli.help_layout import Alias, examples, paragraphs
from paceline.cli.main import Lazy, all_commands, main
from paceline.settings.table import SETTINGS, of_place


def commands(group=main, path=()):
    """All commands, by the words that call them."""
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if isinstance(command, click.Group):
            yield from commands(command, (*path, name))
        else:
            yield " ".join((*path, name)), command


ALL = dict(commands())
GROUPS = [
    "",
    *(name for name in all_commands() if isinstance(main.get_command(click.Context(main), name), click.Group)),
]
MANY = 9
"""Options that need sections."""
LONG_DTYPES = {"float64", "float32", "float16", "bfloat16"}


def command_of(group):
    return main.get_command(click.Context(main), group) if group else main


def page(name, columns=80):
    return cli.call(*name.split(), "--help", COLUMNS=str(columns)).output


def options(command):
    return [one for one in command.params if isinstance(one, click.Option) and not one.hidden]


def entry(option, text):
    """The lines of the sections that begin with this option's names."""
    sections = text[re.search(r"^\S.*:$", text, re.M).start() :]
    return [line for line in sections.splitlines() if re.match(rf"  (\S+, )*{re.escape(option)}(?![\w-])", line)]


@pytest.mark.parametrize("name", ALL)
def test_each_option_is_listed_once(name):
    text = page(name)
    for option in options(ALL[name]):
        names = [f"--[no-]{option.opts[0][2:]}"] if option.secondary_opts else option.opts
        for one in names:
            assert len(entry(one, text)) == 1, one
    assert len(entry("--help", text)) == 1
    hidden = [one for one in ALL[name].params if getattr(one, "hidden", False)]
    assert not any(entry(one, text) for option in hidden for one in option.opts)


@pytest.mark.parametrize("name", ALL)
def test_each_option_has_a_section(name):
    command = ALL[name]
    assert isinstance(command, Command)
    members = [member for names in command.sections.values() for member in names]
    assert len(set(members)) == len(members)
    listed = {one.name for one in options(command) if not isinstance(one, Alias)}
    if members or len(listed) > MANY:
        assert listed <= set(members)


@pytest.mark.parametrize("columns", [60, 80])
@pytest.mark.parametrize("name", [*ALL, *GROUPS])
def test_pages_are_narrow_and_nothing_is_cut(name, columns):
    text = page(name, columns)
    texts = paragraphs(ALL[name] if name in ALL else command_of(name))
    kept = {f"  {line}" for paragraph in texts if paragraph.startswith("\b") for line in paragraph.splitlines()}
    for line in text.splitlines():
        assert len(line) <= (80 if line in kept or len(line.split()) == 1 else columns), line
    assert "..." not in re.sub(r"\[\w+\]\.\.\.", "", text)


@pytest.mark.parametrize("name", ALL)
def test_lists_are_marked(name):
    command, text = ALL[name], page(name)
    marked = re.findall(r"^  -.*…\s+\* ", text, re.MULTILINE)
    lists = [one for one in options(command) if getattr(one.type, "is_list", False) and not isinstance(one, Alias)]
    assert len(marked) == len(lists)
    assert ("marked *" in " ".join(text.split())) == bool(lists)


@pytest.mark.parametrize("name", ALL)
def test_choices_are_in_the_text(name):
    """A placeholder is short, so the words that an option takes are in its text."""
    for option in options(ALL[name]):
        if isinstance(option, Alias):
            continue
        words = set(getattr(option.type, "choices", ()))
        words |= {
            word
            for word in option.type.name.removesuffix(",…").split("|")
            if word.islower() and "|" in option.type.name
        }
        if words & {"bf16"}:
            words -= LONG_DTYPES
        said = {word.strip(".,:;()") for word in option.help.split()} | {"float32", "float16", "bfloat16", "auto"}
        assert words <= said, (option.name, words - said)


EXAMPLES = [(name, line) for name, command in ALL.items() for line in examples(command)]


@pytest.mark.parametrize(("name", "line"), EXAMPLES)
def test_examples_can_be_typed(name, line):
    parse(shlex.split(line)[1:])


def parse(words):
    """Parse a command line, and one that it starts."""
    group, context = main, click.Context(main)
    while isinstance(group, click.Group) and words:
        word, *words = words
        group = group.get_command(context, word)
        context = click.Context(group, parent=context, info_name=word)
    made = group.make_context(context.info_name, list(words))
    inner = next((value for value in made.params.values() if isinstance(value, tuple) and "paceline" in value), None)
    if inner is not None:
        parse(list(inner[inner.index("paceline") + 1 :]))
    return made


def test_the_help_of_simulate():
    text = page("simulate")
    basic = text.partition("Basic options:\n")[2].partition("\n\n")[0]
    assert len(re.findall(r"^  -", basic, re.M)) == 12
    assert text.index("Basic options:") < text.index("Trace or model:")
    assert len(examples(ALL["simulate"])) == 4
    assert "--gpus, --workers N,…" in basic
    assert {one.name for one in of_place("simulate")} <= {one.name for one in ALL["simulate"].params}


def test_texts_are_short():
    for setting in SETTINGS.values():
        for place in setting.uses:
            text = setting.help_of(place)
            assert len(text) < 100, text
            assert not text.startswith(("What", "Whether", "How ", "Which")), text


@pytest.mark.parametrize("name", GROUPS)
def test_groups_have_the_same_layout(name):
    group = command_of(name)
    assert isinstance(group, Lazy | Group)
    listed = page(name)
    for command in group.list_commands(click.Context(group)):
        assert len(re.findall(rf"^  {command}  ", listed, re.M)) == 1


def test_paceline_alone_gets_people_going():
    """Who has a script, a model's name, or a slow run; each command on the screen can be typed."""
    shown = cli.call()
    assert (shown.exit_code, shown.stdout) == (2, "")
    lines = shown.stderr.splitlines()
    assert len(lines) < 25 and max(map(len, lines)) <= 80
    typed = [line.strip().split("   ")[0] for line in lines if line.startswith("  paceline")]
    assert {words.split()[1] for words in typed} >= {"record", "simulate", "run", "advise", "doctor", "list"}
    for words in typed:
        if "COMMAND" not in words and "--help" not in words:
            parse(shlex.split(words)[1:])
    assert all(
        any(line.startswith(who) for line in lines) for who in ("You have a training", "You have a model", "Your run")
    )


def test_the_model_of_the_screen_is_forecast():
    shown = cli.call().stderr
    line = next(line for line in shown.splitlines() if "--sharding" in line)
    assert cli.output(*shlex.split(line)[1:]).startswith("llama-3-8b, zero3 (FSDP), 64")


def test_the_page_is_of_signs_that_the_terminal_has():
    text = cli.program("simulate", "--help", env={**os.environ, "PYTHONIOENCODING": "latin-1"}).stdout
    assert "--workers N,...   * " in text and "\\u" not in text
