"""Words of files and their names reach a terminal without control or bidirectional characters."""

import json

import cli
import click
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from paceline._internal.block import Fact, block, headline, notes, suggestion
from paceline._internal.console import Column, render, say

WORDS = st.text(st.sampled_from("a\x1b[31m\x07\x9b\u202e\u2066\u200f\r\n\t\x7f"), min_size=1, max_size=12)


def is_plain(text):
    return all(letter.isprintable() or letter == "\n" for letter in click.unstyle(text))


@given(WORDS)
@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_only_styles_reach_the_terminal(capsys, word):
    lines = [*headline(word, "bad"), *block([Fact(word, word, (word, word), tone="limit")]), *notes([word])]
    say(
        [
            *lines,
            *suggestion(f"paceline simulate {word}"),
            *render([Column("a"), Column("b", left=True)], [[[word] * 2]]),
        ]
    )
    assert is_plain(capsys.readouterr().out)


@pytest.mark.parametrize(
    "command",
    [["simulate"], ["advise"], ["compare", "--measured", "3s"]],
    ids=lambda words: words[0],
)
def test_fields_of_trainers_are_escaped(tmp_path, monkeypatch, command):
    monkeypatch.chdir(tmp_path)
    text = "base_model: NousResearch/Meta-Llama-3-8B\nsequence_len: 512\nmicro_batch_size: 1\n"
    file = tmp_path / "a\x1b[31m\u202e.yml"
    file.write_text(text + '"b\\e]0;c\\a": "\\u2066d\\e[2J"\n"\\u009b31m": 1\n')
    answer = cli.output(command[0], file.name, "--gpu", "a100", "--gpus", "4", *command[1:])
    assert "b\\x1b]0;c\\x07" in answer
    assert is_plain(answer)
    assert "\x1b" not in answer


def test_json_keeps_the_words(tmp_path):
    file = tmp_path / "a.yml"
    file.write_text('base_model: NousResearch/Meta-Llama-3-8B\nsequence_len: 512\nmicro_batch_size: 1\n"b\\e[2J": 1\n')
    answer = cli.printed("simulate", file, "--gpu", "a100", "--gpus", "4", "--json")
    assert "b\x1b[2J" in json.dumps(json.loads(answer)[0]["file"], ensure_ascii=False).replace("\\u001b", "\x1b")
    assert is_plain(answer)
