"""Files that commands write: none is written twice, and none that is read."""

import json

import cli
import paceline
import pytest
from paceline import InvalidArgumentError
from paceline.job import timeline_files

TIMELINE = '{"displayTimeUnit": "ms", "traceEvents": [\n{"ph": "i"}\n]}\n'


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.json").write_text(paceline.load_trace("resnet-18").to_json())
    (tmp_path / "cluster.json").write_text(paceline.load_cluster("p3.16xlarge").to_json())
    (tmp_path / "train.py").write_text("print('trains')\n")
    (tmp_path / "old.json").write_text(TIMELINE)
    return tmp_path


SIMULATE = ("simulate", "mine.json", "--workers", "4", "--strategy", "ring")
SCRIPT = ("--", "python", "train.py")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((*SIMULATE, "--timeline", "mine.json"), "--timeline mine.json: this file is read"),
        ((*SIMULATE, "--timeline", "./new/../mine.json"), "this file is read"),
        ((*SIMULATE, "--plot", "mine.json"), "--plot mine.json: this file is read"),
        ((*SIMULATE, "--cluster", "cluster.json", "--timeline", "cluster.json"), "this file is read"),
        ((*SIMULATE, "--sharding", "none", "--plan-json", "mine.json"), "--plan-json mine.json: this file is read"),
        ((*SIMULATE, "--plan-json", "a.json", "--timeline", "a.json"), "--plan-json and --timeline name the same file"),
        ((*SIMULATE, "--plot", "a.png", "--timeline", "a.png"), "--plot and --timeline name the same file"),
        ((*SIMULATE, "--plan-json", "-"), "--plan-json -: would be a file of this name"),
        (("record", "-o", "-", *SCRIPT), "--output -: would be a file of this name"),
        (("run", "-np", "2", "--timeline", "-", *SCRIPT), "-: would be a file of this name"),
        (("record", "-o", "train.py", *SCRIPT), "--output train.py: this file is read"),
        (("run", "-np", "2", "--record", "train.py", *SCRIPT), "--record train.py: this file is read"),
        (("run", "-np", "2", "--timeline", "train.py", *SCRIPT), "--timeline train.py: this file is read"),
        (("run", "-np", "2", "--timeline", "mine.json", *SCRIPT), "is no timeline, and would be replaced"),
        (("run", "-np", "2", "--timeline", "a.json", "--record", "a.json", *SCRIPT), "name the same file"),
    ],
)
def test_no_output_replaces_an_input_or_another_output(folder, words, said):
    (folder / "new").mkdir()
    before = {path: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    result = cli.call(*words)
    assert result.exit_code != 0
    assert said in " ".join(result.stderr.split()), result.output
    assert {path: path.read_bytes() for path in folder.iterdir() if path.is_file()} == before


def test_a_timeline_that_is_not_made_leaves_the_old_one(folder):
    old = folder / "old.json"
    with timeline_files.replacing(str(old), "a1"):
        assert not old.exists()
    assert old.read_text() == TIMELINE
    with pytest.raises(RuntimeError), timeline_files.replacing(str(old), "a1"):
        raise RuntimeError
    assert old.read_text() == TIMELINE
    with timeline_files.replacing(str(old), "a1"):
        old.write_text(json.dumps({"traceEvents": []}))
    assert json.loads(old.read_text()) == {"traceEvents": []}
    assert not list(folder.glob("*.before"))
    with timeline_files.replacing(str(folder / "none.json"), "a1"):
        pass
    assert not (folder / "none.json").exists()


def test_what_is_no_trace_is_told_from_one(folder):
    for name, said in (("train.py", "is a script in Python try: paceline record"), ("old.json", "is a timeline")):
        result = cli.call("simulate", name, "--workers", "4")
        assert result.exit_code == 2 and said in " ".join(result.stderr.split())


@pytest.mark.parametrize("call", [paceline.simulate, paceline.sweep])
def test_unknown_options_are_refused_whatever_their_value(call):
    with pytest.raises(InvalidArgumentError, match="try: bandwidth"):
        call("resnet-18", workers=2, strategy="ring", bandwith=None)
    call("resnet-18", workers=2, strategy="ring", bandwidth=None, racks=None)
