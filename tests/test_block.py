"""The shape of answers: headline, labels, notes, and what to type next."""

import re
import shlex
from collections import defaultdict
from pathlib import Path

from paceline._internal import block, units
from paceline._internal.block import Fact


def test_values_begin_in_one_column_and_keep_to_the_width():
    facts = [
        Fact("Scaling", "90.0% of linear (compute alone: 97.3 ms)"),
        Fact("Would help", ("1.85x", "2x faster compute"), ("10.1x", "2x network bandwidth " * 5)),
        Fact("Setup", "word " * 40),
    ]
    for columns in (40, 60, 80):
        lines = block.block(facts, columns)
        assert max(map(len, lines)) <= columns
        assert all(line[:15].strip() in ("", "Scaling", "Would help", "Setup") for line in lines)
        assert all(line[15] != " " or line[:15].strip() == "" for line in lines)


def test_notes_stand_once_under_their_heading():
    lines = block.notes(["first", "[1] of a mark", "first", "long " * 30], 40)
    assert lines[:4] == ["", "Notes", "  - first", "  [1] of a mark"]
    assert sum("first" in line for line in lines) == 1
    assert max(map(len, lines)) <= 40
    assert block.notes([]) == []


def test_a_long_command_can_be_pasted():
    command = (
        "paceline simulate qwen3-32b --gpu h100 --seq 8192 --gpus 16 --sharding zero3 --batch 4 --checkpointing full"
    )
    lines = block.suggestion(command, 80)
    assert max(map(len, lines)) <= 80
    pasted = _typed(lines)
    assert shlex.split(pasted) == shlex.split(command)
    assert block.suggestion("--sharding zero3") == ["  try: --sharding zero3"]


def test_a_command_with_quoted_words_can_be_pasted():
    command = "paceline simulate 'my model.json' " + " ".join(f"--option{n} value{n}" for n in range(10))
    pasted = _typed(block.suggestion(command, 60))
    assert shlex.split(pasted) == shlex.split(command)


def test_numbers_are_written_alike_everywhere():
    assert units.duration(0.10815) == "108 ms"
    assert units.durations(0.09726, 0.1532) == "97.3-153 ms"
    assert units.durations(0.9617, 1.361) == "0.962-1.36 s"
    assert units.span(13366.4, 21056) == "13,366-21,056"
    assert units.rate(3.2e12) == "3.2 Tbps"
    assert units.percent(0.9) == "90.0%"
    assert units.percent(1.027, 0) == "103%"
    assert units.factor(1.8512) == "1.85x"
    assert units.memory(172.51e9) == "172.5 GB"
    assert units.digits(18942.2) == "18,942"
    assert units.size(102.2e6) == "102 MB"


def _typed(lines):
    """Return a command as a shell reads it."""
    return "\n".join(lines).removeprefix("  try: ").replace("\\\n", " ")


def test_labels_of_several_commands_are_in_the_glossary():
    root = Path(__file__).parents[1]
    users = defaultdict(set)
    for path in (root / "python").rglob("*.py"):
        for label in re.findall(r'Fact\(\s*"([^"]+)"', path.read_text(encoding="utf-8")):
            users[label].add(path)
    terms = set(re.findall(r"^([A-Z][a-z][a-zA-Z ]*)$", (root / "docs/glossary.md").read_text(encoding="utf-8"), re.M))
    shared = {label for label, paths in users.items() if len(paths) > 1}
    assert "Bottleneck" in shared
    assert shared <= terms
