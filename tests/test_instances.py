"""Clouds' instances: every file is valid, every price has a date and a source, names resolve, clusters are made."""

import json
import re
from pathlib import Path

import cli
import pytest
from paceline.catalog.builtin import cluster_text, fields_given, load_cluster
from paceline.catalog.gpus import all_hardware
from paceline.catalog.instances import all_instances, find_instance, price_of, read_instances
from paceline.catalog.nodes import nodes_of
from paceline.errors import InvalidArgumentError
from paceline.forecast.output import machines

ROOT = Path(__file__).parents[1]
CLOUDS = ("AWS", "Azure", "CoreWeave", "GCP", "Lambda", "OCI")


def test_every_cloud_has_instances_and_no_name_is_twice():
    assert sorted({one.cloud for one in all_instances()}) == list(CLOUDS)
    names = [name.lower() for one in all_instances() for name in (one.name, *one.aliases)]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("one", all_instances(), ids=lambda one: one.name)
def test_an_instance_has_sources_and_is_a_cluster(one):
    assert one.source
    if one.price is not None:
        assert re.fullmatch(r"20\d\d(-\d\d-\d\d)?", one.price.date) and one.price.source
        assert 0.1 < one.price.usd_per_gpu_hour < 30
    assert price_of(one.name) == one.price
    cluster = load_cluster(one.name)
    assert cluster.name == one.name and cluster.gpus_per_node == one.gpus and cluster.provenance
    assert all(load_cluster(alias) == cluster for alias in one.aliases)
    if not one.is_cluster:
        assert json.loads(cluster_text(one.name))["name"] == one.name
        assert {"bandwidth", "gpu", "latency"} <= fields_given(one.name)
    if one.gpus > 1 and not one.is_cluster and not one.inside:
        assert cluster.intra_bandwidth_bps == pytest.approx(
            nodes_of(one.hardware).cluster.intra_bandwidth_bps, rel=0.05
        )
    assert ("Assumed: 25 Gbit/s" in cluster.provenance) == (not one.states_network)


@pytest.mark.parametrize(
    ("word", "name"),
    [
        ("p5", "p5.48xlarge"),
        ("P4D", "p4d.24xlarge"),
        ("a3-mega", "a3-megagpu-8g"),
        ("a3_ultra", "a3-ultragpu-8g"),
        ("nd-h100-v5", "Standard_ND96isr_H100_v5"),
        ("ND96isr_MI300X_v5", "Standard_ND96isr_MI300X_v5"),
        ("bm.gpu.h100.8", "BM.GPU.H100.8"),
        ("coreweave-b200", "coreweave-b200"),
    ],
)
def test_short_names(word, name):
    assert find_instance(word).name == name == load_cluster(word).name


def test_unknown_names_suggest_others():
    assert find_instance("dgx-h100") is price_of("dgx-h100") is None
    with pytest.raises(InvalidArgumentError) as raised:
        load_cluster("p5e.48xlrge")
    assert "p5e.48xlarge" in raised.value.remedy
    shown = cli.call("list", "instances", "a3-megaa")
    assert shown.exit_code == 2 and "a3-mega" in shown.stderr


def test_the_command_lists_and_shows():
    rows = json.loads(cli.call("list", "instances", "--json").stdout)
    assert [row["name"] for row in rows] == [one.name for one in all_instances()]
    one = json.loads(cli.call("list", "instances", "p5", "--json").stdout)
    assert (one["gpu"], one["gpus"], one["price"]["usd_per_gpu_hour"]) == ("h100", 8, price_of("p5").usd_per_gpu_hour)
    text = cli.call("list", "instances", "p5e").stdout
    assert "Price        none was found" in text
    # A forecast on a cluster needs no --gpu, and has its network.
    result = json.loads(cli.call("simulate", "gpt2-small", "--cluster", "a3-mega", "--gpus", 16, "--json").stdout)
    assert result[0]["bandwidth_bps"] == 1.6e12 if isinstance(result, list) else result["bandwidth_bps"] == 1.6e12


@pytest.mark.parametrize(
    ("kind", "words", "has", "has_not"),
    [
        ("instances", "h100", {"p5.48xlarge", "gpu_1x_h100_pcie"}, {"p4d.24xlarge"}),
        ("instances", "LAMBDA gh200", {"gpu_1x_gh200"}, {"gpu_8x_h100_sxm5"}),
        ("gpus", "Hopper", {"h100", "h200", "gh200"}, {"a100-80gb"}),
        ("gpus", "rtx 40", {"rtx-4090"}, {"rtx-3090"}),
        ("clusters", "H100", {"dgx-h100", "p5.48xlarge"}, {"dgx-a100"}),
        ("models", "llama 8b", {"llama-3-8b", "llama-3.1-8b"}, {"llama-7b", "qwen3-8b"}),
        ("traces", "resnet", {"resnet-50", "netop-resnet-101"}, {"vgg-16"}),
        ("strategies", "multicast", {"ps-multicast", "ring-multicast"}, {"ring"}),
        ("strategies", "butterfly", {"recursive-doubling"}, {"ring"}),
        ("libraries", "horovod-mp", {"horovod-mpi", "horovod-mpich"}, {"horovod", "ddp"}),
    ],
)
def test_words_filter_a_list(kind, words, has, has_not):
    document = cli.answer("list", kind, *words.split())
    names = {one["name"] for one in (document["libraries"] if kind == "libraries" else document)}
    assert has <= names and not names & has_not
    text = cli.output("list", kind, *words.split())
    assert all(name in text for name in has)


def test_a_name_is_shown_and_other_words_are_refused():
    assert cli.output("list", "gpus", "RTX", "4090").startswith("rtx-4090: ")
    assert cli.output("list", "traces", "resnet50").startswith("resnet-50: ")
    for kind in ("instances", "gpus", "clusters", "models", "traces", "strategies", "libraries"):
        assert "unknown " in cli.refused("list", kind, "nosuchthing")
        assert "nothing has all of 'nosuchthing h100' in its name" in cli.refused("list", kind, "nosuchthing", "h100")
    # The words that do match, and the nearest name.
    assert "try: paceline list clusters a100\n" in cli.refused("list", "clusters", "a100", "mi")
    assert "try: paceline list gpus rtx, or rtx-5090\n" in cli.refused("list", "gpus", "rtx", "5080")
    # Options of one model, and a copy, need its name.
    assert "unknown model 'llama-3.1'" in cli.refused("list", "models", "llama-3.1", "--gpu", "h100")
    assert "unknown cluster 'h100'" in cli.refused("list", "clusters", "h100", "--export", "mine.json")


def test_a_file_that_is_wrong_says_where(tmp_path):
    path = tmp_path / "mine.json"

    def refused(match, **fields):
        entry = {"name": "m1", "gpu": "h100", "gpus": 8, "price": None} | fields
        path.write_text(
            json.dumps(
                {"format": "paceline-instances", "version": 1, "cloud": "Mine", "source": "x", "instances": [entry]}
            )
        )
        with pytest.raises(InvalidArgumentError, match=match):
            read_instances(path)

    refused("m1: racks: unknown field", racks=2)
    refused(r"m1\.gpus: is wrong: 0", gpus=0)
    refused("m1: price: needs", price={"usd_per_gpu_hour": 2.0})
    refused("m1: price.date", price={"usd_per_gpu_hour": 2.0, "date": "today", "source": "x"})
    refused("m1: price.usd_per_gpu_hour", price={"usd_per_gpu_hour": -1, "date": "2026", "source": "x"})
    refused("unknown GPU", gpu="h9000")


def test_the_page_of_machines_is_up_to_date():
    written = (ROOT / "docs/reference/machines.md").read_text(encoding="utf-8")
    assert written == machines.page(), "python -m paceline.forecast.output.machines docs/reference/machines.md"


def test_a_gpu_says_what_has_been_measured():
    assert "no measured training on CDNA 2 GPUs" in cli.call("list", "gpus", "mi250x").stdout
    assert re.search(r"\d+ measured steps on Hopper GPUs, of \d+ sources", cli.call("list", "gpus", "h100").stdout)
    verdict = cli.call("simulate", "gpt2-small", "--gpu", "mi250x", "--gpus", 8).output
    assert "no interval: fewer than two sources have measured CDNA 2 GPUs" in re.sub(r"\s+", " ", verdict)


FIGURES = ("peak_flops", "memory_bandwidth", "memory_bytes", "power_w", "multiprocessors", "clock_hz", "l2_bytes")


@pytest.mark.parametrize("device", all_hardware(), ids=lambda device: device.name)
def test_every_figure_of_a_gpu_has_a_source(device):
    document, sources = device.document(), " ".join(device.sources)
    for figure in (*FIGURES, "launch_s", "bus_bandwidth"):
        assert figure in sources or figure not in document, figure
    assert device.peer_access or "peer_access" in sources


def test_on_gpus_of_amd_the_library_is_rccl():
    shown = cli.call("simulate", "allreduce:1GB", "--cluster", "nd-mi300x-v5", "--gpus", 8).stdout
    assert shown.startswith("RCCL all-reduce of 1 GB, 8 GPUs of Standard_ND96isr_MI300X_v5: ")
    assert "Checked against RCCL's all-reduces on 8 MI300X" in shown
    words = ("simulate", "gpt2-small", "--gpu", "mi300x", "--json", "--gpus")
    notes = {gpus: json.loads(cli.call(*words, gpus).stdout)[0]["notes"] for gpus in (1, 8)}
    assert any("RCCL is forecast by NCCL's model" in note for note in notes[8]) and not any(
        "RCCL" in note for note in notes[1]
    )
    text = cli.call("simulate", "gpt2-small", "--gpu", "mi300x", "--gpus", 8, "--explain").stdout
    assert "besides: HIP context" in text and "besides: RCCL buffers" in text
    assert not re.search("CUDA|NCCL", text.replace("RCCL", "").replace("NCCL's model", ""))
