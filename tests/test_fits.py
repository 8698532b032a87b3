"""What is proposed for a job that does not fit does fit, run as it is printed."""

import json
import random
import re
import shlex
from functools import partial
from pathlib import Path
from typing import Any

import cli
import paceline
import pytest
import tiers
from paceline.forecast.remedies import Families, Trial, proposals

MODELS = ("gpt2-xl", "llama-3.2-1b", "llama-3.1-8b", "qwen3-32b", "llama-3.1-70b", "mixtral-8x7b", "vit-huge")
GPUS = ("rtx-4090", "a10", "a6000", "a100-40gb", "a100", "h100", "mi300x", "t4")
PAIR = re.compile(r"[\d.,]+ [GMk]B allocated ((?:--[a-z0-9-]+ [^\s,]*[^\s:,] ?)+)")


def job(seed: int) -> list[str]:
    """Return a random job, at times one that does not fit."""
    draw = random.Random(seed)
    gpus = draw.choice((1, 1, 1, 2, 4, 8, 16))
    words = [draw.choice(MODELS), "--gpu", draw.choice(GPUS), "--gpus", str(gpus)]
    words += ["--batch", str(draw.choice((1, 1, 2, 4, 12)))]
    is_text = words[0] != "vit-huge"
    if is_text:
        words += ["--seq", "512" if words[0] == "gpt2-xl" else str(draw.choice((512, 2048, 8192)))]
    if is_text and draw.random() < 0.5:
        words += ["--lora", str(draw.choice((8, 64))), *draw.choice(([], [], ["--dora"], ["--quantize", "nf4"]))]
    if gpus > 1:
        words += draw.choice(([], ["--sharding", "zero1"], ["--sharding", "zero3"]))
    words += draw.choice(([], [], ["--checkpointing", "selective"], ["--optimizer", "sgd"], ["--accumulate", "2"]))
    return words


def typed(text: str) -> list[str]:
    """Return the command after `try: `."""
    _, _, rest = text.partition("  try: ")
    command = re.match(r"(?:.*\\\n)*.*", rest)
    assert command is not None
    return shlex.split(command[0].replace("\\\n", " "))


def data(*words: object) -> Any:
    """Return the JSON that a command prints."""
    return json.loads(cli.call(*words, "--json").stdout)


def check_simulate(words: list[str]) -> bool:
    """Check what is proposed; return whether something was."""
    text = cli.output("simulate", *words)
    if "does not fit" not in text.splitlines()[0]:
        assert "Fits with" not in text
        return False
    facts = cli.facts(text)["Fits with"]
    if facts.startswith("nothing"):
        assert "\n  try: larger GPUs" in text
        return False
    ways = [shlex.split(way) for way in PAIR.findall(facts)]
    assert ways and "sgd" not in facts
    for way in ways:
        [one] = data("simulate", *words, "--strategy", "native", *way)
        assert one["sharded"]["fits"] is True, way
        # One GPU shards nothing, but gathers what is on the host.
        assert one["workers"] > 1 or "zero" not in " ".join(way) or "--offload" in way
    command = typed(text)
    assert command[:2] == ["paceline", "simulate"]
    assert "does not fit" not in cli.output(*command[1:]).splitlines()[0]
    return True


def check_advise(words: list[str]) -> bool:
    """Check what is proposed; return whether something was."""
    answer = data("advise", *words)
    if answer["best"] is not None:
        return False
    [line] = [line.removeprefix("try: ") for line in answer["verdict"] if line.startswith("try: ")]
    if not line.startswith("paceline "):
        return False
    [facts] = [line for line in answer["verdict"] if line.startswith("Fits with: ")]
    for way in PAIR.findall(facts):
        assert data("advise", *words, *shlex.split(way))["best"] is not None, way
    assert data(*shlex.split(line)[1:])["best"] is not None
    return True


SEEDS = [*range(4), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(4, 200))]


@pytest.mark.parametrize("seed", SEEDS)
def test_what_simulate_proposes_fits(seed: int) -> None:
    check_simulate(job(seed))


@pytest.mark.parametrize("seed", tiers.some(range(200), 200))
def test_what_advise_proposes_fits(seed: int) -> None:
    words = job(seed)
    # Not an option of `advise`, and too slow to search.
    check_advise(
        [word for word in words if word != "vit-huge"] if words[0] != "vit-huge" else ["vit-huge", *words[1:5]]
    )


def test_the_fine_tuner_of_one_gpu_gets_what_a_recipe_would_say() -> None:
    words = ("llama-3.1-8b", "--gpu", "rtx-4090", "--gpus", "1", "--lora", "16", "--seq", "4096")
    text = cli.output("simulate", *words)
    assert "--quantize nf4" in cli.facts(text)["Fits with"].partition("tokens/s")[0]
    assert "--sharding" not in " ".join(typed(text)) and check_simulate(list(words))


def test_json_has_what_the_text_proposes() -> None:
    words = (
        "llama-3.1-8b",
        "--gpu",
        "rtx-4090",
        "--gpus",
        "1",
        "--lora",
        "16",
        "--seq",
        "4096",
        "--strategy",
        "native",
    )
    text = cli.output("simulate", *words)
    [result] = data("simulate", *words)
    ways = [shlex.split(way) for way in PAIR.findall(cli.facts(text)["Fits with"])]
    assert result["fits_with"][0]["command"] == shlex.join(typed(text))
    assert len(ways) == len(result["fits_with"])
    for way in result["fits_with"]:
        [one] = data(*shlex.split(way["command"])[1:])
        assert one["sharded"]["memory"]["peak_bytes"] == way["allocated_bytes"]
        assert one["sharded"]["tight"] == way["tight"]
        assert one["tokens_per_s_per_gpu"] == way["tokens_per_s_per_gpu"]
        assert "fits_with" not in one
    # Kernels of adapters are others than those of full training, which is said.
    assert any("Assumed eager kernels" in note for note in result["notes"])
    assert not any("Assumed eager" in note for note in data("simulate", *words, "--kernels", "fused")[0]["notes"])


@pytest.mark.parametrize(
    "more",
    [
        ("llama-3.2-1b", "--gpu", "rtx-4090", "--gpus", "1", "--lora", "8"),
        ("llama-3.1-8b", "--gpu", "h100", "--gpus", "8", "--sharding", "zero3", "--checkpointing", "full"),
    ],
)
def test_the_longest_sequence_fits_and_a_longer_one_does_not(more: tuple[str, ...]) -> None:
    [result] = data("simulate", *more, "--strategy", "native", "--seq", "max")
    longest, first = result["longest_seq"], cli.output("simulate", *more, "--seq", "MAX").splitlines()[0]
    assert longest % 256 == 0 and longest > 1024 and result["sharded"]["verdict"] == "fits"
    [may] = re.findall(r"up to ([\d,]+) may fit", first) or [f"{longest:,}"]
    assert f"{longest:,} tokens" in first
    for length, verdict in ((longest + 256, "may not fit"), (int(may.replace(",", "")) + 256, "does not fit")):
        [longer] = data("simulate", *more, "--strategy", "native", "--seq", str(length))
        assert longer["sharded"]["verdict"] in (verdict, f"probably {verdict}") and "longest_seq" not in longer
    model, options = more[0], dict(zip((one.lstrip("-") for one in more[1::2]), more[2::2], strict=True))
    options["gpus"] = int(options["gpus"])
    assert paceline.simulate(model, **options, seq="max").longest_seq == longest


def test_what_lengthens_sequences_is_tried() -> None:
    words = (
        "simulate",
        "llama-3.2-1b",
        "--gpu",
        "rtx-4090",
        "--gpus",
        "1",
        "--seq",
        "max",
        "--memory",
        "3GB",
        "--lora",
        "8",
    )
    words = (*words, "--strategy", "native")
    [result] = data(*words)
    ways = result["fits_with"]
    lengths = [way["longest_seq"] for way in ways]
    assert result["longest_seq"] == 0 and lengths == sorted(lengths, reverse=True) and lengths[0] > 1024
    assert any("offload" in way["settings"] for way in ways) and any("offload" not in way["settings"] for way in ways)
    for way in (ways[0], ways[-1]):
        [one] = data(*shlex.split(way["command"])[1:])
        assert one["longest_seq"] == way["longest_seq"]
        assert one["tokens_per_s_per_gpu"] == way["tokens_per_s_per_gpu"]
    text = cli.output(*words)
    assert (
        cli.facts(text)["Longer with"].startswith(f"{lengths[0]:,} tokens")
        and typed(text)[1:] == shlex.split(ways[0]["command"])[1:]
    )


def test_the_longest_sequence_may_be_the_context_or_none() -> None:
    words = ("simulate", "llama-3-8b", "--gpu", "h100", "--seq", "max", "--strategy", "native", "--gpus")
    [result] = data(*words, "8", "--sharding", "zero3", "--checkpointing", "full")
    assert result["longest_seq"] == 8192
    [result] = data(*words, "1")
    assert result["longest_seq"] == 0 and result["sharded"]["fits"] is False
    assert "not even 256 tokens fit" in cli.output(*words, "1").splitlines()[0]


def test_the_longest_sequence_is_of_one_text_model() -> None:
    words = ("simulate", "llama-3.2-1b", "--gpu", "h100", "--seq")
    assert "one configuration" in cli.said(*words, "max", "--gpus", "1,2", code=2)
    assert cli.said(*words, "max", code=2).endswith("try: --gpus 1, or --seq 4096")
    for command, *more in (("advise",), ("compare", "--measured", "2s")):
        assert "max is for paceline simulate" in cli.said(command, *words[1:], "max", "--gpus", 1, *more, code=2)
    assert "needs a model" in cli.said("simulate", "vit-huge", "--gpu", "h100", "--gpus", 1, "--seq", "max", code=2)
    assert "a command for each" in cli.said(*words, "1024,2048", "--gpus", 1, code=2)


def test_changes_lengthen_a_short_sequence() -> None:
    words = ("simulate", "llama-3-8b", "--gpu", "rtx-4090", "--gpus", 1, "--lora", 16, "--seq", "max")
    [result] = data(*words, "--strategy", "native")
    assert 0 < result["longest_seq"] < 1024 and result["sharded"]["fits"]
    assert result["fits_with"] and all(one["longest_seq"] > result["longest_seq"] for one in result["fits_with"])


def test_options_keep_their_spelling(tmp_path: Path) -> None:
    config = tmp_path / "my config.json"
    shape = {"hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32, "intermediate_size": 14336}
    config.write_text(json.dumps({"model_type": "llama", "vocab_size": 128256, **shape}), encoding="utf-8")
    text = cli.output(
        "simulate", "--config", config, "--gpu", "a10", "--gpus", 1, "--lora", 8, "--dora", "--no-overlap"
    )
    command = typed(text)
    assert {"--dora", "--no-overlap", str(config)} <= set(command)
    assert "does not fit" not in cli.output(*command[1:]).splitlines()[0]


def attempt(needs: dict[str, int], settings: dict[str, int]) -> Trial | None:
    """Return a trial of a job that needs 100, and less by what each change saves; there are 50, roomy below 40."""
    if "refused" in settings:
        return None
    need = 100 - sum(needs[name] * value for name, value in settings.items())
    return Trial(settings, need <= 50, need, need / 50, 40 <= need <= 50)


@pytest.mark.parametrize(
    ("saved", "expected"),
    [
        # A change that leaves room, and the mildest variant of another that does.
        ({"a": 61, "b": 30}, [{"a": 1}, {"b": 3}]),
        # No change alone fits.
        ({"a": 31, "b": 16}, [{"a": 1, "b": 2}]),
        # Nor do two; what is not needed is left out.
        ({"a": 25, "x": 0, "b": 8, "c": 24}, [{"a": 1, "b": 2, "c": 1}]),
    ],
)
def test_the_least_changes_that_are_enough_are_proposed(saved: dict[str, int], expected: list[dict[str, int]]) -> None:
    families = [[{name: value} for value in range(1, 4)] if name == "b" else [{name: 1}] for name in saved]
    actual = proposals(Families([*families, [{"refused": 1}]], [], 0, []), partial(attempt, saved), 2.0)
    assert [dict(trial.settings) for trial in actual.fitting] == expected


def test_where_nothing_fits_the_least_is_said() -> None:
    actual = proposals(
        Families([[{"a": 1}], [{"b": 1}]], [], 0, [[{"c": 1}]]), partial(attempt, {"a": 1, "b": 2, "c": 3}), 2
    )
    assert not actual.fitting and actual.least is not None and actual.least.need_bytes == 94
