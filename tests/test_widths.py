"""What people read keeps to the width of their terminal, and no cell of a table is cut off."""

import itertools
import re
from collections import Counter
from pathlib import Path

import cli
import click
import pytest
from hypothesis import given
from hypothesis import strategies as st
from paceline._internal.console import fitted
from paceline._internal.tables import Column, render
from paceline.cli.main import all_commands

DATA = Path(__file__).parent / "data"
JOBS = str(Path(__file__).parent.parent / "examples" / "three-jobs.toml")
PLAN = (Path(__file__).parent.parent / "examples" / "five-all-reduces.json").read_text()
OUTPUTS = [
    "simulate resnet-50 --workers 4,8 --bandwidth 10Gbps,25Gbps --latency 5us,50us --strategy ring,ps --all",
    "simulate llama-3-8b --gpu h100 --gpus 64 --batch 2 --bandwidth 400Gbps --sharding zero1,zero3,hsdp",
    "simulate llama-3-8b --gpu h100 --gpus 16 --batch 1 --accumulate 4 --sharding zero3 --explain",
    "simulate resnet-50 --workers 8 --strategy ring --compression none,fp16,powersgd:4 --straggler 3:1.5",
    "simulate resnet-50 --workers 8 --strategy ring --coordinator all",
    "simulate allreduce:1MB-64MB --cluster dgx-b200 --gpus 8",
    f"simulate --jobs {JOBS}",
    "advise gpt2-small --gpu a100 --gpus 8,16 --bandwidth 100Gbps --global-batch 64 --seq 256 --price 2.5",
    "advise llama-3-8b --gpu h100 --gpus 16",
    "models",
    "models llama-3-8b --gpu h100",
    "gpus",
    "gpus h100",
    "traces --verbose",
    "traces resnet-50",
    "clusters --verbose",
    "clusters h100-rails",
    "strategies",
    "libraries",
    "libraries horovod",
    "libraries channels",
    "study ray-sgd",
    f"import-kineto {DATA / 'interop' / 'ddp-gloo.json.gz'} -o t.json",
    f"bench --read {DATA / 'bench' / 'nccl.log'} --read {DATA / 'bench' / 'tf_cnn.log'}",
    "plan p.json",
    "export-chakra resnet-50 --workers 2 -o r",
]


def too_wide(text, width):
    """Lines that could be narrower: they have more than one word."""
    lines = [click.unstyle(line) for line in text.splitlines()]
    return [line for line in lines if len(line) > width and len(line.split()) > 1]


@pytest.mark.parametrize(
    ("command", "width"),
    [
        # Every second at the narrowest.
        pytest.param(command, width, marks=pytest.mark.slow if width > 60 or place % 2 else ())
        for (place, command), width in itertools.product(enumerate(OUTPUTS), (60, 80, 120))
    ],
)
def test_outputs_keep_to_the_width(tmp_path, monkeypatch, command, width):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "p.json").write_text(PLAN)
    shown = cli.call(*command.split(), COLUMNS=str(width))
    assert shown.exit_code == 0, shown.stderr
    assert shown.stdout
    assert too_wide(shown.output, width) == []


@pytest.mark.parametrize("command", all_commands())
def test_help_keeps_to_the_width(command):
    shown = cli.call(command, "--help", COLUMNS="80")
    text = shown.output.replace("  paceline ", "\0paceline ")  # Commands to copy stay in one line.
    assert [line for line in too_wide(text, 80) if "\0" not in line] == []


WORDS = [
    "a",
    "16",
    "49.1 %",
    "zero3, no reshard",
    "twice the bandwidth inside and between nodes",
    "/a/path/of/a/file" * 9,
]
HEADERS = ["name", "tokens/s\nper GPU", "cost per\nbillion tokens", "faster with"]


@given(st.randoms(use_true_random=False), st.integers(1, 12), st.integers(20, 130))
def test_no_cell_is_cut_off(random, count, width):
    columns = [Column(random.choice(HEADERS), left=random.random() < 0.5) for _ in range(count)]
    rows = [[random.choice(WORDS) for _ in range(count)] for _ in range(random.randrange(1, 4))]
    lines = [click.unstyle(line) for line in render(columns, [rows], width=width)]
    assert max(map(len, lines)) <= width
    written = Counter(re.sub(r"[\s─]", "", "".join(lines)))
    wanted = Counter(
        re.sub(r"\s", "", "".join([*(column.header for column in columns), *(cell for row in rows for cell in row)]))
    )
    assert wanted <= written


def test_a_table_that_fits_is_one():
    columns = [Column("name", left=True), Column("rate\nGB/s")]
    assert [click.unstyle(line) for line in render(columns, [[["a b c", "1"]]], width=40)] == [
        "       rate",
        "name   GB/s",
        "───────────",
        "a b c     1",
    ]


def test_what_is_too_wide_is_wrapped_and_then_continued_below():
    columns = [Column("GPUs"), Column("sharding", left=True), Column("memory"), Column("faster with", left=True)]
    rows = [["64", "zero1, 1 GiB buckets", "77.7 GB", "twice the bandwidth inside"]]
    assert [click.unstyle(line) for line in render(columns, [rows], width=48)] == [
        "GPUs  sharding        memory  faster with",
        "────────────────────────────────────────────────",
        "  64  zero1, 1 GiB   77.7 GB  twice the",
        "      buckets                 bandwidth inside",
    ]
    assert [click.unstyle(line) for line in render(columns, [rows], width=30)] == [
        "GPUs  sharding          memory",
        "──────────────────────────────",
        "  64  zero1, 1 GiB     77.7 GB",
        "      buckets",
        "",
        "GPUs  sharding  faster with",
        "──────────────────────────────",
        "  64  zero1, 1  twice the",
        "      GiB       bandwidth",
        "      buckets   inside",
    ]


def test_headers_are_wrapped_before_columns_are_left_out_and_these_before_cells_are_broken():
    columns = [Column("GPUs"), Column("iteration time"), Column("MFU", spare=1), Column("with", left=True, spare=2)]

    def shown(width):
        lines = render(columns, [[["64", "10.1", "49.1%", "two words"]]], width=width)
        return [click.unstyle(line).rstrip("─") for line in lines]

    assert shown(38) == ["GPUs  iteration time    MFU  with", "", "  64            10.1  49.1%  two words"]
    assert shown(34) == ["       iteration", "GPUs        time    MFU  with", "", "  64        10.1  49.1%  two words"]
    assert shown(30) == ["GPUs  iteration time    MFU", "", "  64            10.1  49.1%"]
    assert shown(20) == ["GPUs  iteration time", "", "  64            10.1"]


def test_a_line_of_text_is_wrapped_and_what_follows_is_indented(monkeypatch):
    monkeypatch.setenv("COLUMNS", "50")
    assert fitted("word " * 8) == "word " * 8
    assert [len(line) <= 50 for line in fitted("word " * 30).split("\n")] == [True, True, True, True]
    assert fitted("word " * 30).split("\n")[1].startswith("  word")
