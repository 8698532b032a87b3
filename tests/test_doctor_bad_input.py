"""Files that `paceline doctor` cannot read: one line that names file and remedy, exit code 2, no traceback."""

import json
import os
import random
from functools import partial

import cli
import pytest
from paceline import InvalidArgumentError
from paceline.doctor import diagnose
from test_doctor_format import FIRST, LAST, Ranks, training

refused = partial(cli.refused, "doctor")


@pytest.fixture
def refusal(tmp_path):
    def write(content):
        path = tmp_path / "run.json"
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        said = refused(path)
        assert str(path) in said
        assert "paceline run -np N --timeline RUN.json" in said
        return said

    return write


def test_what_is_not_there(tmp_path):
    assert "there is no such file, nor complete parts nowhere.json.*rank-*" in refused(tmp_path / "nowhere.json")
    assert "there is no such file" in refused(tmp_path / "no" / "folder" / "run.json")
    assert "is a folder" in refused(tmp_path)
    os.mkfifo(tmp_path / "pipe")
    for endless in (tmp_path / "pipe", "/dev/zero"):
        assert "is a pipe or a device" in refused(endless)
    assert "File name too long" in refused("x" * 5000)


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may read everything")
def test_what_may_not_be_read(tmp_path):
    path = training().write(tmp_path / "run.json")
    path.chmod(0)
    assert "Permission denied" in refused(path)


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ("", "is empty"),
        (" \n\n", "is empty"),
        (b"\x7fELF\xff\xfe", "is not text"),
        ("step 1 loss 0.5\n", "is not JSON"),
        ("[" * 100_000, "is not JSON"),
        ('{"format": "paceline-trace", "version": 1}', "has no traceEvents"),
        ('{"traceEvents": 3}', "has no traceEvents"),
        ("[3]", "an event is 3, not an object"),
        ('[{"ph": "X"}]', "cannot be understood at"),
        ("[]", "contains no events of a run"),
        (FIRST + LAST, "contains no events of a run"),
        (FIRST, "ends in the middle"),
        ("3", "has no traceEvents"),
    ],
)
def test_files_that_are_no_timelines(refusal, content, why):
    assert why in refusal(content)


def test_files_that_were_cut(refusal):
    text = training().text()
    for length in random.Random(0).sample(range(len(FIRST), len(text) - len(LAST)), 40):
        assert "ends in the middle" in refusal(text[:length])


def test_lines_that_are_damaged(refusal):
    lines = training().text().splitlines(keepends=True)
    assert ":5: is not JSON" in refusal("".join([*lines[:4], "oops,\n", *lines[5:]]))
    assert "commas between events are missing" in refusal("".join(lines).replace("},\n", "}\n", 1))
    assert "goes on after its end" in refusal("".join([*lines, *lines]))


@pytest.mark.parametrize(
    "change",
    [
        {"ts": "soon"},
        {"ts": None},
        {"ts": float("nan")},
        {"ts": float("inf")},
        {"ts": True},
        {"dur": -1},
        {"pid": "one"},
        {"pid": 1.5},
        {"pid": -3},
    ],
)
def test_values_that_cannot_be(refusal, change):
    ranks = training()
    next(event for event in ranks.events if event["ph"] == "X").update(change)
    assert "cannot be understood at" in refusal(ranks.text())


@pytest.mark.parametrize("change", [{"bytes": -1}, {"bytes": "many"}, {"operation": None}])
def test_arguments_that_cannot_be(refusal, change):
    ranks = training()
    next(event for event in ranks.events if event["ph"] == "b")["args"].update(change)
    assert "cannot be understood at" in refusal(ranks.text())


def test_a_forecast(refusal, tmp_path):
    path = tmp_path / "forecast.json"
    words = ["simulate", "allreduce:1MB", "--workers", "2", "--strategy", "ring", "--timeline", str(path)]
    assert cli.call(*words).exit_code == 0
    assert "is the timeline of a forecast, not of a run" in refused(path)


def test_timelines_of_others(refusal):
    event = {"ph": "X", "pid": 7, "tid": 1, "name": "aten::mm", "cat": "forward", "ts": 1.0, "dur": 2.0}
    assert "was not recorded by Paceline's runtime" in refusal(json.dumps({"traceEvents": [event]}))


def test_two_recordings_in_one_file(refusal):
    ranks = training()
    ranks.events += training().events
    assert "rank 0 is in it twice" in refusal(ranks.text())


def test_a_run_in_which_nothing_happened(refusal):
    assert "contains neither a step nor an operation" in refusal(Ranks(2).text())
    ranks = Ranks(2)
    ranks.mark(0, "forward", 1, 2)
    assert "contains neither a step nor an operation" in refusal(ranks.text())


def test_parts_of_which_none_is_complete(tmp_path):
    (tmp_path / "run.json.rank-0").write_text(FIRST)
    assert "nor complete parts run.json.*rank-*" in refused(tmp_path / "run.json")


def test_damage_of_any_kind_is_an_error_or_harmless(tmp_path):
    noise, text = random.Random(1), training(3).text()
    path = tmp_path / "run.json"
    for _ in range(150):
        letters = list(text)
        for _ in range(noise.randint(1, 4)):
            letters[noise.randrange(len(letters))] = noise.choice('0{}[]",:eX-\n')
        path.write_text("".join(letters))
        try:
            assert diagnose(path).text(100)
        except InvalidArgumentError as error:
            assert str(path) in str(error)
