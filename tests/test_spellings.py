"""What people write: tokens with a k, money, names of the hub, other programs' options, nccl-tests' sizes."""

import re
from pathlib import Path

import click
import paceline
import pytest
from cli import said
from paceline import InvalidArgumentError
from paceline.catalog.builtin import as_nccl_tests
from paceline.catalog.models.config import built_in_configs, find_config
from paceline.catalog.models.spec import find_workload
from paceline.cli.main import all_commands, main
from paceline.cli.meant import _BY_NAME, _MEANT, meant
from paceline.forecast.jobs import spec
from paceline.forecast.nccl.request import parse
from paceline.settings import kinds
from paceline.settings.table import SETTINGS, SIMULATE, SWEEP
from paceline_lab.explore.state import parse_of_model


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


@pytest.mark.parametrize(("text", "count"), [("1k", 1024), ("1.5K", 1536), ("4096", 4096), (64, 64)])
@pytest.mark.parametrize("place", ["simulate", "report", "advise", "models", SIMULATE, SWEEP])
def test_counts_are_written_with_k_in_every_place(text, count, place):
    of_one = place in (SIMULATE, SWEEP, "report", "simulate")
    assert SETTINGS["batch"].check(text, None, place) == count
    if place != "models":
        assert SETTINGS["workers"].check(text, None, place) in (count, [count])
    assert not of_one or SETTINGS["seq"].check(text, None, place) == count
    assert kinds.GLOBAL_BATCH.check(text) == count


@pytest.mark.parametrize("name", ["batch", "workers", "seq"])
@pytest.mark.parametrize("text", ["k", "0k", "-1k", "1kk", "1.0001k", "1 k", "1kb", "1G"])
def test_what_is_no_count(name, text):
    with pytest.raises(InvalidArgumentError, match=r"is not|must be"):
        SETTINGS[name].check(text)


@pytest.mark.slow
def test_counts_with_k_in_commands_words_files_and_pages():
    assert find_workload("llama-3-8b@h100:batch=1k").batch == 1024
    words = ("llama-3-8b", "--gpu", "h100", "--gpus", "1k", "--batch", "0.5k", "--seq", "1k", "--sharding", "zero3")
    assert re.search(r"1,024x H100.* 1,024 tokens", said("simulate", *words))
    text = said("advise", *words[:4], "64", "--global-batch", "1k", "--seq", "2k")
    result = re.search(r"batch (\d+), (\d+) accum steps", text)
    assert result is not None and 64 * int(result[1]) * int(result[2]) == 1024
    job = {"trace": "gpt2-small", "gpu": "h100", "workers": "0.0625k", "batch": "0.125k", "seq": "1k"}
    (made,) = spec.mix({"cluster": "dgx-h100", "job": [job]}, "jobs.toml").jobs
    assert (made.by_itself.workers, made.by_itself.workload.batch, made.by_itself.workload.model.sequence) == (
        64,
        128,
        1024,
    )
    state = parse_of_model(b'{"gpus": "1k", "seq": "32k", "batch": "0.25k"}')
    assert (state.gpus, state.seq, state.batch) == (1024, 32768, 256)
    with pytest.raises(InvalidArgumentError, match="workers: '1kk' is not a number of ranks"):
        spec.mix({"cluster": "dgx-h100", "job": [job | {"workers": "1kk"}]}, "jobs.toml")


def test_tokens_in_words():
    assert find_workload("llama-3-8b@h100:seq=4k").model.sequence == 4096
    assert " 4,096 tokens" in said(
        *("simulate", "llama-3-8b", "--gpu", "h100", "--gpus", "8", "--seq", "4k", "--sharding", "zero3")
    )
    with pytest.raises(InvalidArgumentError, match="seq: '4kk' must be 1-16777216"):
        find_workload("llama-3-8b@h100:seq=4kk")


@pytest.mark.parametrize("text", ["2.5", "$2.50", "2.50$", "€2.50", "US$2.50", "USD 2.50", "2.50 EUR", " $ 2.5 "])
def test_prices(text):
    assert kinds.PRICES.check(text) == {"": 2.5}


@pytest.mark.parametrize("text", ["", "$", "$-1", "$0", "1e308", "inf", "two", "2,50", "$2.50/h", "2.50 per hour"])
def test_no_prices(text):
    with pytest.raises(InvalidArgumentError, match="must be a price above 0"):
        kinds.PRICES.check(text)


def test_every_built_in_model_has_its_names_on_the_hub():
    names = [one.lower() for config in built_in_configs().values() for one in config.hub]
    assert len(set(names)) == len(names)
    for name, config in built_in_configs().items():
        if result := re.search(r"config\.json of (\S+/\S+) on Hugging Face", config.source):
            assert result[1].rstrip(";,") in config.hub
        for one in config.hub:
            assert find_config(one).name == find_config(one.upper()).name == name
    assert find_workload("Qwen/Qwen3-32B@h100:seq=2k").model.name == "qwen3-32b"
    assert find_config("openai-community/gpt2").name == "gpt2-small" and find_config("gpt2") is None
    assert find_config("bert-base-uncased").name == "bert-base"


def test_names_that_are_not_built_in(tmp_path, monkeypatch):
    assert find_config("Qwen/Qwen3-9000B") is None
    assert "try: qwen3-32b (" in said("models", "Qwen/Qwen3-32", code=2)
    # A folder of the user's is not the hub's model.
    monkeypatch.chdir(tmp_path)
    (tmp_path / "Qwen" / "Qwen3-32B").mkdir(parents=True)
    assert find_config("Qwen/Qwen3-32B") is None


def commands():
    root = click.Context(main, info_name="paceline")
    for name in all_commands():
        command = main.get_command(root, name)
        context = click.Context(command, info_name=name, parent=root)
        if isinstance(command, click.Group):
            for word in command.list_commands(context):
                inner = command.get_command(context, word)
                yield f"{name} {word}", inner, click.Context(inner, info_name=word, parent=context)
        else:
            yield name, command, context


ALL = {name: (command, context) for name, command, context in commands()}


def options_of(command):
    return {option: one for one in command.params for option in (*one.opts, *one.secondary_opts) if option[0] == "-"}


@pytest.mark.parametrize(
    ("command", "option", "ours"),
    [
        *[("simulate", option, "--sharding zero3") for option in ("--fsdp", "--fsdp2", "--zero3", "--zero-3")],
        *[("advise", option, "--sharding zero3 (zero1") for option in ("--zero", "--zero-stage", "--zero_stage")],
        *[("simulate", option, "--gpus 64 --gpus-per-node 8") for option in ("--nodes", "--nnodes", "--num_nodes")],
        *[
            ("simulate", option, "--gpus 3 (all GPUs)")
            for option in ("--world-size", "--num-gpus", "--n-gpus", "--nproc", "-n", "-np")
        ],
        ("simulate", "--nproc_per_node", "--gpus 64 --gpus-per-node 3"),
        ("run", "--nodes", "--hosts node1:8,node2:8"),
        ("run", "--nproc_per_node", "-np 3 (on this machine"),
        ("bench", "--nproc", "-np 3 (all ranks)"),
        ("advise", "--gbs", "--global-batch 3"),
        ("simulate", "--global-batch-size", "--batch 4 --accumulate 4"),
        ("simulate", "--micro_batch_size", "--batch 3"),
        ("advise", "--per_device_train_batch_size", "--batch 3"),
        ("advise", "--gradient_accumulation_steps", "--accumulate 3"),
        ("advise", "--grad-accum", "--accumulate 3"),
        ("bench", "--bs", "--batch-size 3"),
        ("advise", "--price-per-hour", "--price 3"),
        ("simulate", "--torch-compile", "--kernels compiled"),
        ("simulate", "--format", "--json, or --csv"),
        ("advise", "--format", "--json"),
        ("simulate", "--hsdp", "--sharding hsdp"),
        ("simulate", "--bw", "--bandwidth 400Gbps"),
        ("simulate", "--mixed-precision", "--dtype bf16 (bf16, fp16"),
        ("simulate", "--output", "--json > 3"),
        ("run", "--output", "--output-dir 3"),
        ("models", "--max-seq-length", "--seq 3"),
        ("simulate", "--tensor-model-parallel-size", "--tensor-parallel 3"),
        ("simulate", "--bucket_size", "--bucket-size"),
        ("simulate", "-b", "allreduce:1MB-1GB (sizes"),
    ],
)
def test_options_of_other_programs(command, option, ours):
    words = [] if command in ("run", "bench") else ["llama-3-8b", "--gpu", "h100"]
    shown = "-n" if option == "-np" else option
    assert f"unknown option {shown} try: {ours}" in said(command, *words, option, "3", code=2)


@pytest.mark.parametrize(
    ("words", "remedy"),
    [
        (
            "simulate gpt2-xl --price-per-hour 2 --gpus 8",
            "paceline advise gpt2-xl --gpus 8 --price 2 (per GPU and hour)",
        ),
        ("simulate --mtbf 8h", "paceline advise --mtbf 8h"),
        ("models llama-3-8b --tp 8", "paceline simulate llama-3-8b --tensor-parallel 8"),
        ("simulate llama-3-8b --tp=4", "--tensor-parallel 4"),
        ("simulate llama-3-8b --zero-stage 2", "--sharding zero2 (zero1, zero2, zero3)"),
        ("simulate llama-3-8b --amp true", "--dtype bf16 (bf16, fp16, tf32, fp32)"),
        ("simulate llama-3-8b --liger-kernel true", "--loss-chunks 8"),
        ("simulate llama-3-8b --optimizer-implementation foreach", "--optimizer-impl foreach (fused, foreach, loop)"),
        (
            "simulate llama-3-8b --optim adamw",
            "--optimizer adamw (adamw, adamw-8bit, paged-adamw-8bit, adafactor, lion, muon, sgd)",
        ),
        ("simulate --model gpt2-xl", "paceline simulate gpt2-xl, or drop --model"),
        ("simulate --bandwith 1Gbps", "--bandwidth"),
        ("simulate --strateg ring", "--strategy"),
        ("simulate --xyz", "paceline simulate --help (lists the options)"),
        ("emulate up --xyz", "paceline emulate up --help (lists the options)"),
        ("--xyz", "paceline --help (lists the options)"),
        ("--gpus 8 simulate gpt2-xl", "paceline simulate gpt2-xl --gpus 8"),
        ("--json list models", "paceline list models --json"),
        ("list --json models", "paceline list models --json"),
        ("--csv report", "paceline --help (lists the options)"),
        ("run --bf16 -np 2 train.py", "paceline run -np 2 train.py --bf16 (an option of the script)"),
        ("run --bf16 -np 2", "paceline run -np 4 -- python train.py --lr 0.1 --bf16 (an option of the script)"),
    ],
)
def test_options_that_are_unknown(words, remedy):
    assert said(*words.split(), code=2).endswith(f" try: {remedy}")


@pytest.mark.parametrize("command", ALL)
def test_what_is_meant_exists_and_works(command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    made, context = ALL[command]
    known = options_of(made)
    for name in _BY_NAME:
        option = f"--{name}"
        if option in known:
            continue
        error = meant(click.NoSuchOption(option, ctx=context))
        assert error.message == f"unknown option {option}"
        assert error.remedy
        if error.remedy.startswith("paceline "):
            continue
        plain = re.sub(r"[()]", " ", error.remedy)
        for ours, value in re.findall(r"(?<![\w-])(--?[a-z][a-z-]*)(?: ([^- >][^ ,]*))?", plain):
            parameter = known[ours]
            if not parameter.is_flag and value:
                parameter.type.convert(value, parameter, context)


def test_the_table_of_other_programs_options():
    names = " ".join(_MEANT).split()
    assert len(set(names)) == len(names)
    # Each row is of use to a command.
    for names, several in _MEANT.items():
        for template in several:
            ours = re.sub(r"\{(.*?)\}", r"\1", template)
            assert any(
                ours in (meant(click.NoSuchOption(f"--{name}", ctx=context)).remedy or "")
                for command, context in ALL.values()
                for name in names.split()
                if f"--{name}" not in options_of(command)
            ), ours


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


@pytest.mark.skipif(not Path("/proc/self").is_dir(), reason="needs Linux")
def test_a_timeline_that_cannot_be_written_is_refused_at_the_start():
    message = said("run", "-np", "1", "--timeline", "/proc/t.json", "--", "echo", "trained", code=2)
    assert re.search(r"/proc/t\.json: nothing can be written to the folder /proc: .* try: --timeline ", message)
    assert "trained" not in message
