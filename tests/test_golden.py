"""One in ten of the golden files, and what tells them apart; `make golden-check` compares them all."""

import dataclasses

import pytest
from golden import capture, files
from golden.__main__ import main
from golden.compare import Output, differences
from golden.entries import FOLDER, entries

ENTRIES = entries()
PLACES = {"commands", "inputs", "__pycache__"}


@pytest.mark.parametrize("entry", [entry for entry in ENTRIES if entry.tier == "everyday"], ids=lambda it: it.label)
def test_numbers_are_as_they_were(entry):
    with capture.folder():
        output = capture.run(entry)
    assert [str(it) for it in differences(files.read(entry), output) if not it.is_wording] == []


def test_every_entry_has_a_file_and_every_file_an_entry():
    written = {
        path
        for folder in FOLDER.iterdir()
        if folder.is_dir() and folder.name not in PLACES
        for path in folder.iterdir()
    }
    assert written == {entry.path for entry in ENTRIES}


def test_files_are_read_as_they_were_written(tmp_path):
    for form in ("json", "text"):
        entry = dataclasses.replace(ENTRIES[0], form=form, theme=str(tmp_path), name="one")
        document = {"a": [1.0, 2, None, "x y"], "long": ["word" * 20] * 5, "nan": 1e-300} if form == "json" else None
        output = Output(
            2, "" if document else "a table\n\n  1  2", "error: 3\nmore", {"t.json": {"numbers": 4}}, document
        )
        files.write(entry, output)
        assert files.read(entry) == output


def test_what_takes_minutes_is_not_run_unless_it_is_asked_for():
    assert {entry.label for entry in ENTRIES if entry.tier == "optional"} >= {"studies/load-imbalance.json"}


def test_words_that_no_entry_has_are_refused(capsys):
    with pytest.raises(SystemExit):
        main(["check", "no entry has this"])
    assert "no entry has these words" in capsys.readouterr().err


BEFORE = {
    "iteration_s": 0.1,
    "strategy": "ring",
    "notes": ["the ring waits for 3 ranks"],
    "links": [{"kind": "worker egress", "busiest_s": 0.5}],
    "is_fast": True,
}


def changed_at(**changes):
    now = {key: value for key, value in (BEFORE | changes).items() if value is not ...}
    return [(it.where, it.is_wording) for it in differences(Output(document=BEFORE), Output(document=now))]


@pytest.mark.parametrize(
    ("changes", "where"),
    [
        ({"iteration_s": 0.1 + 2**-56}, "output.iteration_s"),
        ({"iteration_s": None}, "output.iteration_s"),
        ({"iteration_s": "0.1"}, "output.iteration_s"),
        ({"iteration_s": float("nan")}, "output.iteration_s"),
        ({"iteration_s": ...}, "output.iteration_s"),
        ({"memory": 1}, "output.memory"),
        ({"strategy": "tree"}, "output.strategy"),
        ({"is_fast": 1}, "output.is_fast"),
        ({"links": []}, "output.links[0]"),
        ({"links": [*BEFORE["links"], {}]}, "output.links[1]"),
        ({"links": [{"kind": "worker ingress", "busiest_s": 0.5}]}, "output.links[0].kind"),
        ({"links": [{"kind": "worker egress", "busiest_s": 0.25}]}, "output.links[0].busiest_s"),
        ({"notes": ["the ring waits for 4 ranks"]}, "output.notes[0], number 1 of 1"),
        ({"notes": ["the ring waits for some ranks"]}, "output.notes[0], number 1 of 1"),
    ],
)
def test_a_number_a_name_or_a_field_counts(changes, where):
    assert changed_at(**changes) == [(where, False)]


def test_words_and_the_form_of_a_number_do_not_count():
    assert changed_at() == []
    assert changed_at(notes=["3 ranks are waited for by the ring"]) == [("output.notes[0]", True)]
    assert [it.is_wording for it in differences(Output(document=[1]), Output(document=[1.0]))] == [True]


def test_of_texts_the_numbers_count():
    before = Output(stdout="ring  1.5 ms\nps    20 ms", stderr="note: 8 workers")
    reworded = Output(stdout="ring      1.5 ms\nservers    20 ms", stderr="8 workers, note that")
    assert {it.where for it in differences(before, reworded) if it.is_wording} == {"stdout", "stderr"}
    assert all(it.is_wording for it in differences(before, reworded))
    [changed] = differences(before, dataclasses.replace(before, stdout="ring  1.5 ms\nps    21 ms"))
    assert str(changed) == "stdout, number 2 of 2: '20' -> '21' (+5.00e-02)"
    [shorter] = differences(before, dataclasses.replace(before, stdout="ring  1.5 ms"))
    assert "20" in str(shorter) and "(missing)" in str(shorter)
    [failed] = differences(before, dataclasses.replace(before, exit_code=2))
    assert str(failed).startswith("exit code: 0 -> 2")


def test_of_files_the_numbers_count():
    before = Output(files={"run.json": {"numbers": 3, "of_numbers": "a", "digest": "x"}})

    def changed(**values):
        now = Output(files={"run.json": before.files["run.json"] | values})
        return [(it.where, it.is_wording) for it in differences(before, now)]

    assert changed() == []
    assert changed(digest="y") == [("file run.json, words", True)]
    assert changed(digest="y", of_numbers="b") == [("file run.json.of_numbers", False)]
    assert [it.where for it in differences(before, Output())] == ["file run.json"]
