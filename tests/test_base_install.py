"""An installation without extras: help, completion and refusals of every command, and the public Python names.

They are tried in an environment that holds the two dependencies and what those need, and nothing else. What needs an
extra names it; nothing ends in a traceback.
"""

import importlib.util
import json
import os
import re
import tomllib
from pathlib import Path

import base_environment
import cli
import pytest
from paceline.cli.main import all_commands

ROOT = Path(__file__).parent.parent
EXTRAS = set(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"])
REMEDY = re.compile(r"pip install '\.\[([a-z]+)\]' \(in a checkout of Paceline\)")
# Commands with options that need an extra, and the extra.
NEED = [
    (["validate", "--quick"], "emulate"),
    (["emulate", "up", "--workers", "2", "--bandwidth", "1Gbps"], "emulate"),
    (["emulate", "run", "--workers", "2", "--bandwidth", "1Gbps", "--", "true"], "emulate"),
    (["simulate", "resnet-18", "--workers", "2", "--plot", "a.png"], "plot"),
    (["report", "spec.toml", "-o", "a.html"], "plot"),
    (["study", "ddl-nccl", "--plots", "figures"], "plot"),
    (["bench"], "bench"),
    (["record", "--model", "resnet18", "-o", "a.json"], "torch"),
    (["explore", "resnet-18"], "explore"),
    (["export-chakra", "resnet-18", "--workers", "2", "-o", "job"], "chakra"),
    (["import", "tensorflow", "graph.xplane.pb", "--batch", "1", "-o", "a.json"], "chakra"),
    (["plan", "graph.pb"], "tensorflow"),
    (["simulate", "resnet-18", "--workers", "2", "--executor", "ray"], "ray"),
]
WORK = [
    ["simulate", "resnet-50", "--workers", "4", "--json"],
    ["advise", "llama-3-8b", "--gpu", "h100", "--gpus", "8"],
    ["doctor", "--env"],
    ["study", "ddl-nccl"],
]
NEEDED_BY_NAME = {
    **{"to_frame": "plot", "plot": "plot", "plan_tensorflow": "tensorflow", "RayExecutor": "ray"},
    "emulate.cluster": "emulate",
}
FRONTS = {"torch": "torch", "tensorflow": "tensorflow", "keras": "tensorflow", "jax": "jax"}


@pytest.fixture(scope="module")
def python(tmp_path_factory):
    return base_environment.make(tmp_path_factory.mktemp("base"))


def run(python, *words, **variables):
    environ = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    environ |= {"PATH": f"{python.parent}:{environ['PATH']}", **variables}
    words = [str(word) for word in words]
    return cli.ended(*words, env=environ, cwd=python.parent)


@pytest.fixture(scope="module")
def survey(python):
    given = json.dumps([words for words, _ in NEED] + WORK)
    done = run(python, python, Path(__file__).with_name("base_survey.py"), given)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def extra_of(text):
    """The extra that an error names; every remedy is one that exists."""
    named = REMEDY.findall(" ".join(text.split()))
    assert set(named) <= EXTRAS, text
    return named[0] if named else None


def test_the_environment_holds_nothing_else(python):
    names = base_environment.needed("paceline")
    assert {"paceline", "click", "rich"} < names and not names & {"numpy", "torch", "pandas"}
    done = run(python, python, "-c", "import importlib.util as u; print([u.find_spec(n) for n in ('numpy', 'torch')])")
    assert done.stdout.strip() == "[None, None]"


@pytest.mark.parametrize("command", all_commands())
def test_help_and_refusals(survey, command):
    calls = [one for one in survey["calls"] if one["words"][0] == command]
    assert len(calls) >= 6
    for one in calls:
        assert one["raised"] is None, one
        assert one["code"] in {0, 1, 2, 77}, one
        if "--help" in one["words"]:
            assert one["code"] == 0 and one["output"].startswith("Usage: "), one
        if "No module named" in one["output"]:
            assert extra_of(one["output"]), one


@pytest.mark.parametrize(("words", "extra"), NEED, ids=lambda value: " ".join(value) if isinstance(value, list) else "")
def test_an_extra_is_named(survey, words, extra):
    (one,) = [one for one in survey["given"] if one["words"] == words]
    assert one["raised"] is None and one["code"] in {2, 77}, one
    assert extra_of(one["output"]) == extra, one


@pytest.mark.parametrize("words", WORK, ids=" ".join)
def test_what_needs_no_extra_works(survey, words):
    (one,) = [one for one in survey["given"] if one["words"] == words]
    assert one["raised"] is None and one["code"] == 0, one


def test_ranks_name_the_extra(survey):
    named = {one["words"][0]: extra_of(one["output"]) for one in survey["as_rank"]}
    assert named == {"probe": "torch", "validate": "emulate"}
    assert all(one["raised"] is None and one["code"] == 2 for one in survey["as_rank"]), survey["as_rank"]


def test_completion(survey):
    assert {name for one in survey["completions"][:1] for name in one["items"]} == set(all_commands())
    for one in survey["completions"]:
        assert one["raised"] is None, one
        if one["words"][-1] == "--":
            assert "--help" in one["items"], one


def test_the_shell_completes(python):
    program = python.with_name("paceline")
    done = run(python, program, _PACELINE_COMPLETE="bash_complete", COMP_WORDS="paceline validate --qu", COMP_CWORD="2")
    assert (done.stdout, done.stderr) == ("plain,--quick\n", "")


def test_modules_that_scripts_import(survey):
    """Horovod's module paths too. Without its library, a front says which extra brings it."""
    tried = {one["words"]: one for one in survey["imports"]}
    assert {"paceline.torch.elastic", "paceline.tensorflow.keras", "paceline.ray.ps", "paceline.job"} <= set(tried)
    for name, one in tried.items():
        extra = FRONTS.get(name.split(".")[1])
        if extra is None:
            assert one["raised"] is None, one
        else:
            assert one["raised"] == "ImportError" and extra_of(one["message"]) == extra, one


def test_public_names(survey):
    for one in survey["api"]:
        if one["words"] in NEEDED_BY_NAME:
            assert extra_of(one["message"]) == NEEDED_BY_NAME[one["words"]], one
        else:
            assert one["raised"] is None, one
    assert {one["words"] for one in survey["api"]} >= {"paceline.simulate", "paceline.job.join", *NEEDED_BY_NAME}


@pytest.mark.process
def test_ranks_measure_their_network(python, tmp_path):
    done = run(python, "paceline", "run", "-np", 2, "--", "paceline", "probe", "--quick", "-o", tmp_path / "c.json")
    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "c.json").read_text())["bandwidth"]


@pytest.mark.process
def test_ranks_that_replay_name_the_extra(python):
    words = (python, "-m", "paceline_lab.replay", "resnet-18", "--shrink", "100")
    done = run(python, "paceline", "run", "-np", 2, "--", *words)
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert extra_of(done.stderr) == "emulate"


def test_every_front_is_tried():
    """A new package beside these that imports a framework must be added above."""
    assert all(importlib.util.find_spec(f"paceline.{name}") for name in FRONTS)
