"""What the command line says about a command that is typed wrong: two lines, the second something to type."""

import shlex

import cli
import click
import pytest
from paceline.cli.help_layout import Alias
from paceline.errors import InvalidArgumentError, Source
from paceline.settings.table import SETTINGS
from test_help import ALL, GROUPS, options, parse


def refused(*words):
    """The two lines, without what begins them."""
    shown = cli.call(*words)
    assert (shown.exit_code, shown.stdout) == (2, ""), shown.output
    what, remedy = shown.stderr.splitlines()
    assert what.startswith("paceline: error: ") and remedy.startswith("  try: ")
    return what.removeprefix("paceline: error: "), remedy.removeprefix("  try: ")


def test_the_words_of_the_issue():
    assert refused("simulate", "--worker", "3") == ("unknown option --worker", "--workers")
    assert refused("simulat") == ("no such command 'simulat'", "paceline simulate")
    assert refused("modles") == ("no such command 'modles'", "paceline list models")
    assert refused("emulate", "upp") == ("no such command 'upp'", "paceline emulate up")
    assert refused("plan")[0] == "GRAPH is missing"
    assert refused("import", "kineto")[0] == "TRACE.json[.gz] is missing"
    assert refused("doctor", "a", "b") == ("unexpected argument 'b'", "paceline doctor run.json")
    assert refused("simulate", "--explain=3") == ("--explain takes no value", "--explain")
    assert refused("simulate", "--gpus") == ("--gpus needs a value", "--gpus 64")
    assert refused("emulate", "up")[1] == "paceline emulate up --workers 4 --bandwidth 500Mbps"
    assert refused("run", "--gloo", "x")[1].startswith("drop --gloo")


@pytest.mark.parametrize("name", ALL)
def test_an_option_without_a_value_is_answered_with_one_that_works(name):
    command = ALL[name]
    for option in options(command):
        if option.is_flag:
            continue
        what, remedy = refused(*name.split(), option.opts[0])
        assert what == f"{option.opts[0]} needs a value"
        given, value = shlex.split(remedy)
        assert given == option.opts[0]
        option.type.convert(value, option, click.Context(command))


@pytest.mark.parametrize("name", ALL)
def test_a_switch_with_a_value_is_answered_without(name):
    for option in options(ALL[name]):
        if option.is_flag and option.opts[0].startswith("--"):
            assert refused(*name.split(), f"{option.opts[0]}=3") == (f"{option.opts[0]} takes no value", option.opts[0])


@pytest.mark.parametrize("name", ALL)
def test_what_is_missing_is_answered_with_an_example_that_has_it(name):
    command = ALL[name]
    missing = [one for one in command.params if one.required]
    if missing:
        what, remedy = refused(*name.split())
        assert what.endswith(" is missing")
        assert remedy.startswith(f"paceline {name} ")
        parse(shlex.split(remedy)[1:])


@pytest.mark.parametrize("name", [name for name, one in ALL.items() if not any(it.nargs == -1 for it in one.params)])
def test_an_argument_too_many(name):
    words = ["none"] * (1 + sum(isinstance(one, click.Argument) for one in ALL[name].params))
    for option in ALL[name].params:
        if isinstance(option, click.Option) and option.required:
            words += shlex.split(refused(*name.split(), option.opts[-1])[1])
    what, remedy = refused(*name.split(), *words)
    assert what == "unexpected argument 'none'"
    assert remedy.startswith("paceline ")
    parse(shlex.split(remedy.partition(" (")[0])[1:]) if "--help" not in remedy else None


@pytest.mark.parametrize("name", GROUPS)
def test_an_unknown_command(name):
    what, remedy = refused(*name.split(), "frobnicate")
    assert what == "no such command 'frobnicate'"
    assert remedy == f"{' '.join(['paceline', *name.split()])} --help (lists commands)"


@pytest.mark.parametrize("name", [*ALL, *GROUPS])
def test_an_unknown_option(name):
    what, remedy = refused(*name.split(), "--frobnicate")
    assert what == "unknown option --frobnicate"
    assert "--help" in remedy or "--frobnicate" in remedy  # a script's own


@pytest.mark.parametrize("name", ALL)
def test_a_value_that_is_refused_is_answered_with_one_to_type(name):
    context = click.Context(ALL[name])
    for option in options(ALL[name]):
        setting = SETTINGS.get(option.of if isinstance(option, Alias) else option.name or "")
        for value in ("\N{SNOWMAN}", "", ",", "-1", "0", "1e99"):
            if option.is_flag:
                continue
            try:
                option.type.convert(value, option, context)
                if setting is not None and name in setting.uses:
                    setting.check(value, Source("flag", option.opts[0]), name)
            except InvalidArgumentError as error:
                assert error.remedy_as("flag"), (option.name, value)
