"""What an error advises works: the command that it names, or the option, the value or the name that it proposes."""

import json
import re
import shlex
from pathlib import Path

import cli
import pytest
import tiers
from paceline.catalog.gpus import find_hardware
from remedies import typed

ROOT = Path(__file__).parent.parent
TINY = str(ROOT / "examples" / "tiny.json")
LLAMA = "simulate llama-3-8b --gpu h100 --strategy native"
MISTAKES = [
    "simulate resnet5 --workers 2",
    "simulate llama-3-8b --workers 8",
    "simulate {tiny} --workers 2 --bandwidth 10",
    "simulate {tiny} --workers 2 --bandwidth 10GB",
    "simulate {tiny} --workers 2 --latency 5",
    "simulate {tiny} --workers 2 --strategy rign",
    "simulate {tiny} --workers 2 --bucket-size 25",
    "simulate {tiny} --workers 4 --servers 2 --strategy ring",
    "simulate {tiny} --workers 4 --chunk 1MB --strategy native",
    "simulate {tiny} --workers 4 --tensor-parallel 2",
    "simulate {tiny} --workers 4 --gpu h100",
    "simulate {tiny} --workers 4 --coordinator negotiat",
    "simulate {tiny} --workers 4 --library horovd",
    "simulate {tiny} --workers 4 --prefetch 2",
    "simulate {tiny} --workers 4 --bandwith 10Gbps",
    "simulate {tiny} --workers 4 --cluster p3.16xlrge",
    "simulate allreduce:1MB --workers 4 --compute-speedup 2",
    "simulate allreduce",
    "simulate allgather:1GB --workers 8",
    "simulate all-gather:1GB --cluster dgx-h100 --workers 8",
    "simulate gpt2-xxl --gpu h100 --workers 8",
    f"{LLAMA} --gpus 16 --pipeline-parallel 2",
    f"{LLAMA} --gpus 16 --pipeline-parallel 2 --microbatches 3 --virtual-stages 2",
    f"{LLAMA} --gpus 16 --sharding fdsp",
    f"{LLAMA} --gpus 16 --sharding zero3:8",
    f"{LLAMA} --gpus 16 --prefetch 2",
    f"{LLAMA} --gpus 16 --reshard-after-forward no",
    f"{LLAMA} --gpus 16 --virtual-stages 2",
    "advise",
    "advise gpt2-small --gpu a100",
    "advise gpt2-smal --gpu a100 --gpus 8",
    "advise gpt2-small --gpu a100 --gpus 8 --global-batch 3",
    "models lama-3-9b",
    "models --gpu h100",
    "traces resnet-5x",
    "clusters dgx-h1000",
    "libraries horovd",
    "study",
    "study raysgd",
    "simulat {tiny} --workers 2",
    "run -np 2 --strategy rign -- true",
]


@pytest.mark.parametrize("mistake", tiers.some(MISTAKES, 3))
def test_what_an_error_advises_works(mistake):
    words = shlex.split(mistake.format(tiny=TINY))
    what, remedy = cli.refused(*words).splitlines()
    advised = list(typed(words, what, remedy.removeprefix("  try: ")))
    assert advised, remedy
    results = {shlex.join(one): cli.call(*one) for one in advised[:4]}
    assert any(result.exit_code == 0 for result in results.values()), (
        remedy,
        {k: r.stderr for k, r in results.items()},
    )


@pytest.mark.parametrize("gpu", ["h200", "rtx-4090", "NVIDIA A100-SXM4-40GB"])
@pytest.mark.parametrize("trace", ["{tiny}", "resnet-50"])
def test_what_forecasts_a_recording_on_a_gpu(gpu, trace, tmp_path):
    words = ["simulate", trace.format(tiny=TINY), "--workers", "8", "--gpu", gpu]
    what, remedy = cli.refused(*words).splitlines()
    *ways, record = typed(words, what, remedy.removeprefix("  try: "))
    assert len(ways) == 1 + (trace == "resnet-50" and gpu.startswith("NVIDIA"))
    for way in ways:
        cli.printed(*way)
    script = ROOT / "examples" / "gpt.py"
    with_model = [*record[: record.index("--")], "--", "python", str(script)]
    with_model[with_model.index("-o") + 1] = str(tmp_path / "mine.json")
    assert record[record.index("--") + 1 :] == ["python", "train.py"] and script.exists()
    assert find_hardware(with_model[2]) == find_hardware(gpu)


def test_a_switch_of_a_built_in_cluster_that_can_add_up(tmp_path):
    for cluster, strategy in (("fat-tree-k16", "sharp"), ("dgx-h100", "ps-multicast"), ("leaf-spine-25g", "sharp")):
        words = ["simulate", TINY, "--workers", "16", "--strategy", strategy, "--cluster"]
        message = cli.call(*words, cluster).stderr
        wanted, command = re.search(
            r"--cluster mine.json with (.+) in its switch \(paceline (.*)\)$", message, re.M
        ).groups()
        mine = tmp_path / f"{cluster}.json"
        cli.printed(*command.replace("mine.json", str(mine)).split())
        text = mine.read_text()
        for able in wanted.split(" and "):
            assert able.replace("true", "false") in text
            text = text.replace(able.replace("true", "false"), able)
        mine.write_text(text)
        assert cli.call(*words, str(mine)).exit_code == 0
    refused = cli.call("simulate", TINY, "--workers", "16", "--strategy", "sharp", "--cluster", "h100-rails")
    assert "not modeled in fabrics of this kind" in refused.stderr and "export" not in refused.stderr


def test_what_clusters_prints_as_json_is_a_cluster(tmp_path):
    one, every, none = tmp_path / "one.json", tmp_path / "all.json", tmp_path / "none.json"
    one.write_text(cli.call("clusters", "dgx-h100", "--json").stdout)
    every.write_text(cli.call("clusters", "--json").stdout)
    none.write_text("[]")
    words = ["simulate", TINY, "--workers", "16", "--json", "--cluster"]
    results = [json.loads(cli.call(*words, cluster).stdout) for cluster in ("dgx-h100", str(one))]
    assert results[0] == results[1]
    refused = cli.refused(*words, str(every))
    command = re.search(r"try: paceline (list clusters NAME --export mine.json)", refused)[1]
    mine = str(tmp_path / "mine.json")
    assert cli.call(*command.replace("NAME", "dgx-h100").replace("mine.json", mine).split()).exit_code == 0
    assert json.loads(cli.call(*words, mine).stdout) == results[0]
    # An export gives the fields of its source alone: a copy of any cluster forecasts as much.
    for cluster in ("flat", "p3.16xlarge", "tpu-v4-torus"):
        assert cli.call("clusters", cluster, "--export", mine).exit_code == 0
        assert cli.call(*words, mine).stdout == cli.call(*words, cluster).stdout
    assert "must be one cluster, not a list of 0 clusters" in cli.call(*words, str(none)).stderr


ONE_NODE = (
    "gpt2-small --gpu rtx-4090 --gpus 8",
    "resnet-50 --gpus-per-node 8 --gpus 8 --bandwidth 10Gbps",
    "vgg-16 --gpus-per-node 4 --gpus 4 --strategy ring",
    "bert-large --cluster flat --gpus-per-node 8 --gpus 8 --library horovod",
)


@pytest.mark.parametrize("words", ONE_NODE)
@pytest.mark.parametrize("more", [[], ["--explain"]])
def test_nothing_in_a_switch_is_advised_where_there_is_none(words, more):
    def verdict(*others):
        text = cli.call("simulate", *words.split(), *others, *more).stdout
        return text.partition("\nstrategy ")[0]  # without rows

    for word in ("multicast", "aggregation", "sharp"):
        assert word not in verdict(), verdict()
    if more and "--cluster" not in words:
        assert "switch multicast" in verdict("--gpus", "16")


def test_pages_of_errors_say_what_is_so():
    """Python's examples in docs/reference/errors.md."""
    text = (ROOT / "docs" / "reference" / "errors.md").read_text(encoding="utf-8")
    examples = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert examples
    for example in examples:
        wanted = dict(re.findall(r"^\s+(error\.\w+)  # (.+)$", example, re.MULTILINE))
        seen = {}
        code = re.sub(r"^(\s+)(error\.\w+)  # .+$", r"\1seen['\2'] = repr(\2)", example, flags=re.MULTILINE)
        exec(code, {"paceline": __import__("paceline"), "seen": seen})
        assert seen == wanted
