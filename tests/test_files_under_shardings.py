"""What a trainer's file says follows the sharding: each row of a table is the forecast of the row's own command."""

import json
import shlex

import cli
import pytest
from paceline.forecast.advisor.job import Job
from paceline.forecast.request import Sweep
from test_trainer_files import FILES, MODEL, written

TRAINER = "model_name_or_path: mistralai/Mistral-7B-v0.1\nper_device_train_batch_size: 2\nmax_length: 1024\n"
OWN = {
    "trl.yaml": TRAINER,
    "bf16.yaml": f"{TRAINER}bf16: true\n",
    "fsdp.yaml": f"{TRAINER}fsdp: shard_grad_op\nbf16: true\nuse_liger_kernel: true\n",
    "factory.yaml": f"{TRAINER}bf16: true\nstage: sft\ncutoff_len: 512\n".replace("max_length: 1024\n", ""),
    "ax.yml": "base_model: mistralai/Mistral-7B-v0.1\nmicro_batch_size: 2\nsequence_len: 2048\nbf16: auto\n"
    "fsdp: [full_shard]\nfsdp_config:\n  fsdp_offload_params: true\n",
    "ax_ddp.yml": "base_model: mistralai/Mistral-7B-v0.1\nmicro_batch_size: 1\nsequence_len: 512\nbf16: true\n",
}
TEXTS = {name: text for name, (text, *_) in FILES.items()} | OWN
ON = ("--gpu", "h100", "--gpus", "32")
SHARDINGS = "none,zero3,zero1,hsdp"


def given(name):
    model = MODEL if name in ("ds_config.json", "accelerate.yaml") else ()
    return (*ON, *model, *(() if "seq" in FILES.get(name, ("", "", {"seq": 1}))[2] else ("--seq", "1024")))


def simulated(*words):
    return json.loads(cli.printed("simulate", *words, "--json"))


EVERYDAY = {"accelerate.yaml", "ax.yml", "sft.yaml", "titan.toml"}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in EVERYDAY else pytest.mark.slow) for name in TEXTS]
)
def test_a_row_of_advise_is_the_forecast_of_its_command(tmp_path, name):
    path = written(tmp_path, name, TEXTS[name])
    [made] = json.loads(cli.printed("advise", path, *given(name), "--top", "8", "--json"))["gpus"]
    assert made["rows"]
    for row in made["rows"]:
        paceline, command, *words = shlex.split(row["command"])
        [alone] = simulated(*words, "--strategy", "native")
        assert (paceline, command) == ("paceline", "simulate")
        assert alone["iteration_s"] == pytest.approx(row["iteration_s"], rel=1e-9), row["command"]
        assert alone["sharded"]["memory"]["total_bytes"] == row["memory"]["total_bytes"], row["command"]


@pytest.mark.parametrize("name", sorted(TEXTS.keys() - {"train.sh"}))
def test_a_row_of_several_shardings_is_the_forecast_of_one(tmp_path, name):
    path = written(tmp_path, name, TEXTS[name])
    words = (path, *given(name), "--strategy", "native")
    rows = simulated(*words, "--sharding", SHARDINGS)
    for sharding, row in zip(SHARDINGS.split(","), rows, strict=True):
        [alone] = simulated(*words, "--sharding", sharding)
        own = {key: value for key, value in row.items() if key not in ("file", "notes")}
        assert own == {key: alone[key] for key in own}, sharding


def test_recipes_and_offload_follow_the_sharding(tmp_path):
    """DDP, FSDP and DeepSpeed have types of their own, and only FSDP offloads parameters."""

    def options(name):
        values = {"gpu": "h100", "workers": 16} | ({"model": MODEL[1]} if name == "accelerate.yaml" else {})
        sweep = Sweep.of(written(tmp_path, name, TEXTS[name]), values, "simulate")
        shardings = ("none", "zero1", "zero2", "zero3", "hsdp")
        return [sweep.changed({"sharding": [one]}).values for one in shardings]

    assert [one["precision"] for one in options("bf16.yaml")] == ["amp-bf16", "o2", "o2", "mixed", "mixed"]
    assert [one["precision"] for one in options("ax_ddp.yml")] == ["bf16", "o2", "o2", "mixed", "mixed"]
    assert [one["precision"] for one in options("accelerate.yaml")] == ["amp-bf16", "o2", "o2", "mixed", "mixed"]
    assert [one["precision"] for one in options("sft.yaml")] == ["o2"] * 5
    assert [one.get("offload") for one in options("ax.yml")] == [None] * 3 + ["cpu:parameters,states"] * 2
    assert [one.get("reshard_after_forward") for one in options("fsdp.yaml")] == [None] * 3 + ["no"] * 2


def test_a_table_of_the_file_says_what_follows_the_sharding(tmp_path):
    path = written(tmp_path, "bf16.yaml", TEXTS["bf16.yaml"])
    text = cli.printed("simulate", path, *ON, "--sharding", "none,zero3,hsdp")
    assert "under zero3 and hsdp: --precision mixed" in cli.facts(text)["Assumed"]
    made = json.loads(cli.printed("advise", path, *ON, "--json"))["file"]["assumed"]
    assert {"assumption": "under zero1 and zero2: --precision o2", "remedy": ""} in made


@pytest.mark.parametrize(
    ("name", "has", "keeps"),
    [
        ("titan.toml", {"none", "zero3", "hsdp"}, True),
        ("fsdp.yaml", {"none", "zero3", "hsdp"}, True),
        ("sft.yaml", {"none", "zero1", "zero2", "zero3"}, False),
        ("smol.yaml", {"none", "zero1"}, False),
        ("bf16.yaml", {"none", "zero1", "zero2", "zero3", "hsdp"}, True),
    ],
)
def test_values_that_a_trainer_or_what_shards_lacks_are_not_searched(tmp_path, name, has, keeps):
    values = {"gpu": "h100", "workers": 32}
    space = Job.of(Sweep.of(written(tmp_path, name, TEXTS[name]), values, "advise")).space
    setups = space.setups(32, 8)
    assert {one.sharding for one in setups} == has
    assert any(one.kept for one in setups) == any(one.local for one in setups) == keeps


def test_a_file_is_forecast_on_the_machine_of_the_headline(tmp_path):
    path = written(tmp_path, "titan.toml")
    words = ("advise", path, "--gpu", "a100,h100", "--gpus", "16,32", "--top", "1", "--tokens", "1e9")
    made = json.loads(cli.printed(*words, "--json"))
    assert (made["best"]["gpu"], made["best"]["gpus"]) == ("h100", 32) and made["as_in_file"]["where"] == "32x H100"
    assert "As in file   32x H100, batch " in cli.printed(*words)
    # On each number of GPUs, the file has the global batch that it has there alone.
    for outcome in made["machines"][0]["answer"]["gpus"]:
        words = (path, "--gpu", "a100", "--gpus", str(outcome["gpus"]), "--top", "1", "--tokens", "1e9", "--json")
        assert json.loads(cli.printed("advise", *words))["gpus"] == [outcome]
