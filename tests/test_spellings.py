"""What people write: tokens with a k, money, names of the hub, other programs' options, nccl-tests' sizes."""

import re

import paceline
import pytest
from click.testing import CliRunner
from paceline import InvalidArgumentError
from paceline.catalog.library import as_nccl_tests
from paceline.catalog.models.config import built_in_configs, find_config
from paceline.catalog.models.spec import find_workload
from paceline.cli.advise import _price
from paceline.cli.main import COMMANDS, main
from paceline.cli.meant import _MEANT, _SAME
from paceline.forecast.nccl.request import parse
from paceline.settings.table import SETTINGS


def said(*words, status=0):
    told = CliRunner().invoke(main, words)
    assert told.exit_code == status, told.output
    return " ".join(told.output.split())


@pytest.mark.parametrize(
    ("text", "tokens"),
    [("8192", 8192), ("8k", 8192), ("32K", 32768), ("128k", 131072), ("1M", 2**20), ("0.5k", 512), (2048, 2048)],
)
def test_tokens(text, tokens):
    assert SETTINGS["seq"].check(text) == tokens
    if isinstance(text, str) and tokens < 10**5:
        assert find_workload("llama-3-8b", gpu="h100", seq=tokens) == find_workload(
            "llama-3-8b", gpu="h100", seq=SETTINGS["seq"].check(text)
        )


@pytest.mark.parametrize("text", ["k", "0k", "-1k", "32kk", "32kb", "1.0001k", "99999M", "32 k", "32e3k", "3G"])
def test_no_tokens(text):
    with pytest.raises(InvalidArgumentError, match="seq"):
        SETTINGS["seq"].check(text)


def test_tokens_in_words():
    assert find_workload("llama-3-8b@h100:seq=4k").model.sequence == 4096
    assert "sequences of 4096 tokens" in said(
        *("simulate", "llama-3-8b", "--gpu", "h100", "--gpus", "8", "--seq", "4k", "--sharding", "zero3")
    )
    with pytest.raises(InvalidArgumentError, match="seq: '4kk' is not a whole number"):
        find_workload("llama-3-8b@h100:seq=4kk")


@pytest.mark.parametrize("text", ["2.5", "$2.50", "2.50$", "€2.50", "US$2.50", "USD 2.50", "2.50 EUR", " $ 2.5 "])
def test_prices(text):
    assert _price(text) == 2.5


@pytest.mark.parametrize("text", ["", "$", "$-1", "$0", "1e308", "inf", "two", "2,50", "$2.50/h", "2.50 per hour"])
def test_no_prices(text):
    with pytest.raises(InvalidArgumentError, match="is not a price above 0"):
        _price(text)


def test_every_built_in_model_has_its_names_on_the_hub():
    names = [one.lower() for config in built_in_configs().values() for one in config.hub]
    assert len(set(names)) == len(names)
    for name, config in built_in_configs().items():
        if found := re.search(r"config\.json of (\S+/\S+) on Hugging Face", config.source):
            assert found[1].rstrip(";,") in config.hub
        for one in config.hub:
            assert find_config(one).name == find_config(one.upper()).name == name
    assert find_workload("Qwen/Qwen3-32B@h100:seq=2k").model.name == "qwen3-32b"
    assert find_config("openai-community/gpt2").name == "gpt2-small" and find_config("gpt2") is None
    assert find_config("bert-base-uncased").name == "bert-base"


def test_names_that_are_not_built_in(tmp_path, monkeypatch):
    assert find_config("Qwen/Qwen3-9000B") is None
    assert "did you mean 'qwen3-32b'" in said("models", "Qwen/Qwen3-32", status=2)
    # A folder of the user's is not the hub's model.
    monkeypatch.chdir(tmp_path)
    (tmp_path / "Qwen" / "Qwen3-32B").mkdir(parents=True)
    assert find_config("Qwen/Qwen3-32B") is None


@pytest.mark.parametrize(
    ("command", "option", "ours"),
    [
        *[("simulate", option, "--sharding zero3") for option in ("--fsdp", "--fsdp2")],
        *[
            ("advise", option, "--sharding zero1, zero2 or zero3")
            for option in ("--zero", "--zero-stage", "--zero_stage")
        ],
        *[("simulate", option, "--gpus N, all of them together") for option in ("--nodes", "--nnodes", "--num_nodes")],
        ("run", "--nodes", "--hosts a:8,b:8"),
        ("advise", "--gbs", "--global-batch N"),
        ("simulate", "--global-batch-size", "--batch and --accumulate"),
        ("simulate", "--micro_batch_size", "--batch N"),
    ],
)
def test_options_of_other_programs(command, option, ours):
    words = ["llama-3-8b", "--gpu", "h100"] if command != "run" else []
    assert f"No such option '{option}'; write {ours}" in said(command, *words, option, "3", status=2)


def test_what_is_meant_exists():
    runner, ours = CliRunner(), set()
    for command in ("simulate", "advise", "run", "validate"):
        ours |= set(re.findall(r"--[a-z-]+", runner.invoke(main, [command, "--help"]).output))
    for option, meanings in _MEANT.items():
        assert option not in ours, "it exists"
        for name, how in meanings:
            assert name in ours, name
            assert set(re.findall(r"--[a-z-]+", how)) <= ours
    assert set(_SAME.values()) <= set(_MEANT)
    assert set(COMMANDS) >= {"simulate", "advise", "run"}


@pytest.mark.parametrize(
    ("word", "sizes"),
    [
        ("allreduce:1M-4M", (2**20, 2**21, 2**22)),
        ("allreduce:1M", (2**20,)),
        ("allgather:512K-1m", (2**19, 2**20)),
        ("allreduce:8-32", None),
        ("allreduce:256-1K", (256, 512, 1024)),
        ("allreduce:0.5G-1G", (2**29, 2**30)),
        ("allreduce:1MB-4MB", (10**6, 2 * 10**6, 4 * 10**6)),
        ("allreduce:1MiB-2M", (2**20, 2**21)),
        ("allreduce:1MB-2M", (10**6, 2 * 10**6, 2**21)),
    ],
)
def test_sizes_of_nccl_tests(word, sizes):
    if sizes is None:
        with pytest.raises(InvalidArgumentError, match="has no unit"):
            parse(word)
    else:
        assert parse(word).sizes == sizes


def test_sizes_of_a_trace_are_the_same():
    assert paceline.load_trace("allreduce:64M").buckets() and as_nccl_tests("allreduce:64M/4") == "allreduce:64MiB/4"
    for word in ("resnet-50", "allreduce:64MB", "llama-3-8b@h100:seq=4k", "allreduce:x", "allreduce:"):
        assert as_nccl_tests(word) == word
