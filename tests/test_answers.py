"""Answers of forecasts: a headline, labels, and figures that agree with the results, for random scenarios."""

import os
import re
from itertools import islice

import click
import pytest
from paceline._internal import units
from paceline.errors import InvalidArgumentError
from paceline.forecast.lowering import is_long
from paceline.forecast.output.table import table
from paceline.forecast.run import result_of
from paceline.forecast.verdict.advice import advise
from paceline.forecast.verdict.groups import grouped
from paceline.forecast.wording import verdict
from random_scenarios import scenarios

# One worker makes them.
pytestmark = pytest.mark.xdist_group("answers")
COUNT = 60 if os.environ.get("PACELINE_TEST_ALL") else 12
_LABEL = re.compile(r"  ([A-Z][A-Za-z ]{0,10}?)  +\S")


@pytest.fixture(scope="module")
def answers():
    """Return answers with their results."""
    made = []
    for words, scenario in islice(scenarios(5), 4 * COUNT):
        if len(made) == COUNT:
            break
        if is_long(scenario):
            continue
        try:
            result = result_of(scenario)
        except InvalidArgumentError:
            continue
        groups = grouped([scenario], [result])
        [one] = advise(groups)
        made.append((words, result, verdict.answer(one, groups, has_table=bool(table(groups))), one))
    return made


def test_the_first_line_has_the_workload_and_the_result(answers):
    for words, result, answer, one in answers:
        assert answer.headline.startswith(result.trace), words
        if one.is_empty:
            continue
        does_not_fit = result.sharded is not None and result.sharded.fits is False
        assert ("does not fit" in answer.headline) == does_not_fit == (not answer.fits), words
        figures = answer.otherwise or answer.headline
        if result.tokens_per_s_per_gpu is not None:
            assert f"{units.digits(result.tokens_per_s_per_gpu)} tokens/s per GPU" in figures, words
        else:
            assert units.duration(result.iteration_s) in figures, words


def test_labels_stand_once_and_lines_keep_to_the_width(answers, monkeypatch):
    for words, _, answer, _ in answers:
        labels = [fact.label for fact in answer.facts]
        assert len(labels) == len(set(labels)), words
        for columns in (60, 80):
            monkeypatch.setenv("COLUMNS", str(columns))
            lines = [click.unstyle(line) for line in answer.lines()]
            assert max(map(len, lines)) <= columns, words
            assert {match[1] for line in lines if (match := _LABEL.match(line))} >= set(labels), words


def test_every_answer_has_an_interval_or_says_why_not(answers):
    for words, result, answer, one in answers:
        if one.is_empty or (result.workers == 1 and result.servers == 0):
            continue
        [likely] = [fact for fact in answer.facts if fact.label == "Likely"]
        if result.interval is None:
            assert likely.values[0].startswith("no interval: "), words
        else:
            assert likely.values[0].startswith(units.durations(result.interval.low_s, result.interval.high_s)), words


def test_what_does_not_fit_names_the_parts_of_its_memory(answers):
    for words, result, answer, _ in answers:
        if answer.fits:
            assert not answer.remedy, words
            continue
        parts = [float(size.split()[0]) * (1 if "GB" in size else 1e-3) for size, _ in answer.memory[0].values]
        assert sum(parts) == pytest.approx(result.sharded.memory.peak_bytes / 1e9, rel=0.02, abs=0.2), words
        # Nothing was tried.
        assert not answer.remedy, words


def test_sentences_are_the_same_facts(answers):
    for words, _, answer, _ in answers:
        sentences = answer.sentences()
        assert sentences[0] == answer.headline, words
        assert all(any(line.startswith(f"{fact.label}: ") for line in sentences) for fact in answer.facts), words
        assert not any("\n" in line for line in sentences), words
