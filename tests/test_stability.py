"""docs/reference/stability.md: each deprecated name works and warns, and each former name that stays works."""

import importlib
import re
import sys
import warnings
from pathlib import Path

import cli
import click
import paceline
import pytest
from paceline.cli.main import FORMER, main
from paceline.launch.request import Request
from paceline.settings.table import ALIASES, SETTINGS

PAGE = (Path(__file__).parent.parent / "docs" / "reference" / "stability.md").read_text()


def rows(title):
    """The rows of the table under a heading, without the code marks of cells that are one name."""
    lines = PAGE.partition(f"## {title}\n")[2].partition("\n## ")[0].splitlines()
    cells = [[cell.strip().strip("`") for cell in line.strip("|").split("|")] for line in lines if line.startswith("|")]
    return cells[2:]


DEPRECATED = rows("What is deprecated")
FLAGS = [(old, new) for old, new, where in DEPRECATED if where == "command line"]
MODULES = [(old, new) for old, new, where in DEPRECATED if where == "import"]
VALUES = {"record": "h100", "advise": "100Gbps", "bench": "1MiB"}


@pytest.mark.parametrize(("old", "new"), FLAGS)
def test_a_deprecated_option_works_and_warns(old, new, capsys):
    name, former, _ = old.split()
    command = main.get_command(click.Context(main), name)
    current = new.split()[1]
    for words in ((former, VALUES[name]), (current, VALUES[name])):
        context = command.make_context(name, [*words, *(["-o", "x.json"] if name == "record" else [])])
        setting = next(one for one in SETTINGS.values() if one.flag == current)
        assert context.params[setting.name] in (VALUES[name], setting.check(VALUES[name], place=name))
        warning = f"paceline: warning: {former} is now called {current}\n"
        assert capsys.readouterr().err == (warning if words[0] == former else "")
    assert former not in cli.said(name, "--help")


def test_all_deprecated_options_are_listed():
    former = {
        f"{place} {use.former}" for setting in SETTINGS.values() for place, use in setting.uses.items() if use.former
    }
    assert former == {" ".join(old.split()[:2]) for old, _ in FLAGS}
    assert {(old, new) for old, new, where in DEPRECATED if where == "settings of a job"} == set(ALIASES.items())


@pytest.mark.parametrize(("old", "new"), ALIASES.items())
def test_a_deprecated_setting_works_and_warns(old, new):
    with pytest.warns(FutureWarning, match=f"{old} is now called {new}"):
        assert getattr(Request(command=["true"], settings={old: 7}).checked().settings, new) == 7


@pytest.mark.parametrize(("old", "new"), MODULES)
def test_a_deprecated_module_works_and_warns(old, new):
    for name in [it for it in sys.modules if it == old]:
        del sys.modules[name]
    with pytest.warns(FutureWarning, match=f"{old} is now {new}"):
        assert importlib.import_module(old) is importlib.import_module(new)


def test_deprecated_names_of_python_work_and_warn():
    assert {old for old, _, where in DEPRECATED if where == "Python"} == {
        "paceline.sweep(strategies=)",
        "Trace.summary()",
        "paceline.UserError",
    }
    for module in (paceline, paceline.job):
        with pytest.warns(DeprecationWarning, match="is now"):
            assert module.UserError is paceline.InvalidArgumentError
    with pytest.warns(FutureWarning, match="now called strategy="):
        assert len(paceline.sweep("allreduce:1MB", strategies=["ring"], workers=[2])) == 1
    with pytest.warns(FutureWarning):
        paceline.load_trace("allreduce:1MB").summary()


def test_former_names_that_stay_work_without_a_warning():
    listed = {
        word.strip("` ").removeprefix("paceline ")
        for former, _ in rows("Former names that stay")
        for word in former.split(",")
    }
    assert {word for word in listed if re.fullmatch(r"[a-z]+(-[a-z]+)?", word)} == set(FORMER)
    for name in FORMER:
        assert "Usage: " in cli.said(name, "--help")
        assert f"  {name} " not in cli.said("--help")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        one = paceline.simulate("resnet-50", workers=2, device="V100")
        other = paceline.simulate("resnet-50", workers=2, gpu="v100")
    assert one.iteration_s == other.iteration_s
