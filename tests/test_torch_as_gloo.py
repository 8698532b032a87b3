"""Programs that insist on gloo: unchanged under `paceline run --as-gloo`, or anywhere with PACELINE_AS_GLOO=1."""

import os
import re
import sys
from importlib.util import find_spec
from pathlib import Path

import cli
import pytest
from torch_workers.checks import BACKENDS

SCRIPTS = Path(__file__).parent / "as_gloo_scripts"
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone"]
PACELINE = [sys.executable, "-m", "paceline.cli", "run", "-np", "2", "--no-prefix"]

pytestmark = [
    pytest.mark.process,
    pytest.mark.timeout(300),
    pytest.mark.skipif(not BACKENDS, reason="needs torch 2.15"),
]


def said(*command, as_gloo=None, good=True):
    """What two ranks print, with the launcher's and the ranks' errors."""
    env = {name: value for name, value in os.environ.items() if name != "PACELINE_AS_GLOO"}
    env |= {"OMP_NUM_THREADS": "1"} | ({"PACELINE_AS_GLOO": as_gloo} if as_gloo is not None else {})
    command = [str(word) for word in command]
    done = cli.ended(*command, env=env, timeout=200)
    text = done.stdout + done.stderr
    assert (done.returncode == 0) is good, text
    return text


@pytest.mark.parametrize("backend", ["gloo", "cpu:gloo"])
def test_groups_of_gloo_are_pacelines_and_say_gloo(backend):
    text = said(*PACELINE, "--as-gloo", "--", sys.executable, SCRIPTS / "plain.py", backend)
    made = re.findall(r"made by \[(.*)\]", text)
    assert len(made) == 2 and all("Paceline" in each and "Gloo" not in each for each in made), text
    assert text.count("process groups of 'gloo' are Paceline's") == 1, text


def test_by_the_variable_alone_under_torchrun_and_not_without_it():
    assert said(*TORCHRUN, SCRIPTS / "plain.py", "gloo", as_gloo="1").count("PacelineProcessGroup") == 2
    assert said(*TORCHRUN, SCRIPTS / "plain.py", "gloo", as_gloo="0").count("ProcessGroupGloo") == 2
    text = said(sys.executable, "-c", "import torch", as_gloo="perhaps", good=False)
    assert "\npaceline: error: PACELINE_AS_GLOO: must be 1 or 0, not 'perhaps'\n  try: " in f"\n{text}"


@pytest.mark.parametrize(
    ("backend", "as_gloo", "warned"),
    [
        ("gloo", None, "a group of gloo, of which no"),
        (None, "0", "a group of gloo"),
        ("gloo", "1", ""),
        ("paceline", None, ""),
    ],
)
def test_a_group_without_the_timeline_that_is_wanted_is_named_at_once(backend, as_gloo, warned, tmp_path):
    script = f"import torch.distributed as dist; dist.init_process_group({backend!r}); print('made')"
    launcher = [*PACELINE[:4], "-np", "1", "--timeline", tmp_path / "t.json", "--", sys.executable, "-c"]
    text = said(*launcher, script, as_gloo=as_gloo, good=not warned)
    warning = "warning: init_process_group has made a group of gloo, of which no timeline is recorded"
    assert text.count(warning) == bool(warned)
    assert not warned or text.index(warning) < text.index("there is none here")


def _needs(module):
    return pytest.mark.skipif(find_spec(module) is None, reason=f"needs {module}")


@pytest.mark.slow
@pytest.mark.parametrize(
    "script",
    [
        pytest.param("accelerate_cpu.py", marks=_needs("accelerate")),
        pytest.param("hf_trainer.py", marks=[_needs("transformers"), _needs("accelerate")]),
        pytest.param("lightning_ddp.py", marks=_needs("lightning")),
    ],
)
def test_trainers_give_what_they_give_with_gloo(script, tmp_path):
    weights = {}
    for as_gloo, kind in (("1", "Paceline"), ("0", "ProcessGroup")):
        text = said(*TORCHRUN, SCRIPTS / script, tmp_path, as_gloo=as_gloo)
        match = re.findall(r"weights (\S+) .*by (\w+)", text)
        assert len(match) == 2 and all(by.startswith(kind) for _, by in match), text
        weights[kind] = {value for value, _ in match}
    assert weights["Paceline"] == weights["ProcessGroup"] and len(weights["Paceline"]) == 1, weights


@pytest.mark.slow
@_needs("lightning")
def test_lightning_with_the_backend_paceline_averages_its_counter(tmp_path):
    text = said(*TORCHRUN, SCRIPTS / "lightning_ddp.py", tmp_path, "paceline")
    assert len(re.findall(r"by PacelineProcessGroup", text)) == 2, text
