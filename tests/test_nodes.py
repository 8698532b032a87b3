"""The nodes that are assumed of a GPU, and which GPU an unknown name suggests."""

import json
from functools import partial
from pathlib import Path

import cli
import paceline
import pytest
from paceline._core import parse_rate, written_rate
from paceline._internal.nearest import like_gpu
from paceline.catalog import channels
from paceline.catalog.builtin import load_cluster
from paceline.catalog.gpus import all_hardware, find_hardware
from paceline.catalog.nodes import GPUS_PER_NODE, inside_of, node_fields, nodes_of, nodes_of_device
from paceline.catalog.rates import all_rates
from paceline.errors import InvalidArgumentError
from paceline.forecast.prepare import prepare
from paceline.forecast.request import Sweep
from paceline.forecast.run import result_of
from paceline.settings.table import SIMULATE

verdict = partial(cli.said, "simulate", "--strategy", "native")

forecast = partial(cli.answer, "simulate")

FOLDER = Path(paceline.__file__).parent / "catalog" / "gpus"
WITHOUT_NODES = [device.name for device in all_hardware() if device.node is None]
NAMES = {device.name: (device.name, device.title, *device.aliases, *device.like) for device in all_hardware()}


def seconds(trace, workers, **options):
    return paceline.simulate(trace, workers=workers, strategy="native", library="ddp", **options).iteration_s


@pytest.mark.parametrize("gpu", WITHOUT_NODES)
def test_gpus_without_known_nodes_share_one(gpu):
    trace = f"gpt2-small@{gpu}"
    own = nodes_of(find_hardware(gpu)).cluster
    for workers in {min(2, own.gpus_per_node), own.gpus_per_node} - {1}:
        alone = seconds(trace, workers)
        assert alone == seconds(trace, workers, gpus_per_node=workers)
        assert alone < seconds(trace, workers, gpus_per_node=1, bandwidth="25Gbps")
    # The next one is on another node.
    assert seconds(trace, own.gpus_per_node + 1) > 0.95 * seconds(trace, own.gpus_per_node)


@pytest.mark.parametrize("gpu", [device.name for device in all_hardware()])
def test_nodes_of_every_gpu(gpu):
    device = find_hardware(gpu)
    nodes = nodes_of(device)
    cluster = nodes.cluster
    assert nodes.known == device.node
    if device.node is None:
        network = device.network
        usual = load_cluster(network.get("like"), bandwidth=network.get("bandwidth"))
        assert cluster.bandwidth_bps == usual.bandwidth_bps
        assert cluster.nics_per_node == usual.nics_per_node
        assert cluster.gpus_per_node == (
            usual.gpus_per_node if "like" in network else network.get("gpus_per_node", GPUS_PER_NODE)
        )
        inside = cluster.intra_bandwidth_bps / 8
        if device.link_bandwidth is None:
            assert cluster.intra_link == "pcie"
            assert 9e9 < inside < 63e9  # x16 slots of PCI Express 3.0 to 5.0
        else:
            assert 0.9 * device.bus_bandwidth < inside < device.link_bandwidth


FABRIC = ("--cluster", "fat-tree-k16", "--gpus-per-node", 8, "--strategy", "native")


@pytest.mark.parametrize("gpu", ["h100", "a100-40gb", "rtx-4090", "h800", "v100-16gb", "gb200"])
def test_a_cluster_that_does_not_say_what_is_inside_has_the_links_of_the_gpu(gpu):
    words = ("gpt2-small", "--gpu", gpu, "--gpus", 8)
    inside = written_rate(nodes_of(find_hardware(gpu)).cluster.intra_bandwidth_bps)
    [own] = forecast(*words, *FABRIC)
    [alone] = forecast(*words, "--strategy", "native")
    # Messages in a fabric have the links' rate; the host's memory slows NCCL's collectives alone.
    assert own["iteration_s"] == pytest.approx(alone["iteration_s"], rel=0.15)
    note = next(note for note in own["notes"] if " inside nodes, as the " in note)
    assert note.startswith("Assumed ") and note.endswith("fat-tree-k16 does not say (--intra-bandwidth)")
    assert ("PCI Express" in note) == (find_hardware(gpu).link_bandwidth is None)
    # What is given holds, and says nothing.
    [given] = forecast(*words, *FABRIC, "--intra-bandwidth", "20Gbps")
    assert given["iteration_s"] > 1.5 * own["iteration_s"]
    [same] = forecast(*words, *FABRIC, "--intra-bandwidth", inside)
    assert same["iteration_s"] == pytest.approx(own["iteration_s"], rel=0.1)
    assert not any("Assumed" in note for note in given["notes"] + same["notes"])


def test_who_says_what_is_inside(tmp_path):
    words, one = ("gpt2-small", "--gpus", 8, "--strategy", "native", "--gpu", "h100"), tmp_path / "c.json"

    def seconds_on(**fields):
        one.write_text(json.dumps({"format": "paceline-cluster", "version": 1, "name": "mine", **fields}))
        [result] = forecast(*words, "--cluster", one, "--gpus-per-node", 8)
        return result["iteration_s"], any("Assumed" in note for note in result["notes"])

    assumed, is_said = seconds_on(bandwidth="100Gbps")
    assert is_said
    # A file that an export wrote of nodes with one GPU says nothing; one of nodes with several, or another rate, does.
    assert seconds_on(bandwidth="100Gbps", gpus_per_node=1, intra_bandwidth="100Gbps") == (assumed, True)
    for fields in ({"gpus_per_node": 4, "intra_bandwidth": "100Gbps"}, {"intra_bandwidth": "120Gbps"}):
        slower, is_said = seconds_on(bandwidth="100Gbps", **fields)
        assert slower > 1.5 * assumed and not is_said
    # The cluster's own GPU has its own links, whatever computes.
    slow, is_said = seconds_on(bandwidth="100Gbps", gpus_per_node=8, gpu="L4")
    assert slow > 1.5 * assumed and is_said
    assert not any("Assumed" in note for one in forecast(*words, "--cluster", "fat-tree-k16") for note in one["notes"])
    by_device = forecast("resnet-50", "--device", "H100", *FABRIC, "--gpus", 8)[0]
    assert any(note.startswith("Assumed NVLink of ") and " inside nodes" in note for note in by_device["notes"])
    cluster = paceline.load_cluster("fat-tree-k16")
    both = [
        paceline.simulate("gpt2-small@h100", it, "native", workers=8, gpus_per_node=8).iteration_s
        for it in (cluster, "fat-tree-k16")
    ]
    assert both[0] == both[1]
    said = paceline.load_cluster("fat-tree-k16", gpus_per_node=8, intra_bandwidth="100Gbps")
    assert paceline.simulate("gpt2-small@h100", said, "native", workers=8).iteration_s > 1.5 * both[0]


def test_every_device_of_a_rate_has_known_nodes():
    names = {rate.device: nodes_of_device(rate.device).cluster.name for rate in all_rates()}
    assert names == {
        "K80": "p2.8xlarge",
        "P100": "dgx-1-p100",
        "V100": "p3.16xlarge",
        "A100": "dgx-a100",
        "H100": "dgx-h100",
    }
    # What a node with such GPUs is assumed to be is what these are.
    for device in names:
        inside = nodes_of_device(device).cluster
        assert parse_rate(node_fields(device)["intra_bandwidth"]) == inside.intra_bandwidth_bps


def test_each_gpu_says_what_connects_it(tmp_path):
    for path in FOLDER.glob("*.json"):
        assert json.loads(path.read_text())["link"] in channels.inside()
    assert [inside_of(name) for name in ("V100 DGX-1", "K80", "NVIDIA H100 80GB HBM3", "A100 PCIe", "24-core CPU")] == [
        "nvlink-v100",
        "pcie-shared",
        "nvlink-h100",
        "pcie-4",
        None,
    ]
    fields = json.loads((FOLDER / "h100-pcie.json").read_text())
    own = tmp_path / "own.json"
    for link, problem in (
        ("nvlink-h100", "link: nvlink-h100 needs link_bandwidth"),
        (
            "usb",
            "try: one of pcie, pcie-4, pcie-5, pcie-4-x8, pcie-shared, nvlink-p100",
        ),
    ):
        own.write_text(json.dumps(fields | {"link": link}))
        with pytest.raises(InvalidArgumentError, match=problem):
            find_hardware(str(own))
    del fields["link"]  # As older files have none.
    own.write_text(json.dumps(fields))
    assert find_hardware(str(own)).link == "pcie-5"


def test_a_device_shares_a_node():
    for device in ("V100", "A100", "H100", "K80", "P100"):
        eight = seconds("resnet-50", 8, device=device)
        assert eight < seconds("resnet-50", 8, device=device, gpus_per_node=1, bandwidth="25Gbps")


def test_a_rate_alone_is_of_one_rank_a_node_and_the_verdict_says_so():
    words = ("resnet-50", "--samples-per-s", "400", "--workers", "8")
    assert "8 workers, one per node: " in verdict(*words)
    assert "Assumed one rank per node: --samples-per-s names no GPU" in verdict(*words)
    for described in (("--gpus-per-node", "4"), ("--cluster", "dgx-a100"), ("--gpus-per-node", "1")):
        assert "one per node" not in verdict(*words, *described)
    assert "one per node" not in verdict("resnet-50", "--workers", "8")
    same = {"samples_per_s": 400.0}
    assert seconds("resnet-50", 8, **same) == seconds("resnet-50", 8, gpus_per_node=1, **same)


def test_what_is_assumed_is_said():
    result = verdict("gpt2-small", "--gpu", "l4", "--gpus", "8")
    several = "Assumed up to 8 GPUs per node over PCI Express of 192 Gbps"
    assert f"{several} and 100 Gbps over TCP between nodes, as in g6.48xlarge: " in result
    assert "instances have the L4 24 GB (--gpus-per-node, --bandwidth, --channel, --cluster g6.48xlarge, " in " ".join(
        result.split()
    )
    assert "GPUs per node over NVLink" in verdict("gpt2-small", "--gpu", "h800", "--gpus", "8")
    assert "no built-in cluster" not in verdict(
        *("gpt2-small", "--gpu", "l4", "--gpus", "8", "--gpus-per-node", "4", "--bandwidth", "100Gbps")
    )
    assert "Assumed p2.8xlarge nodes; choose others with --cluster" in verdict("resnet-50", "--device", "K80")


@pytest.mark.parametrize(("gpu", "per_node", "most"), [("gh200", 8, 1), ("h100", 16, 8), ("gh200", 1, None)])
def test_larger_nodes_than_any_known_one_are_said(gpu, per_node, most):
    result = verdict("gpt2-small", "--gpu", gpu, "--gpus", "16", "--gpus-per-node", str(per_node))
    assert (f"No known node has more than {most} of the" in result) is (most is not None)
    assert (f"assumed are {per_node} in a node over NVLink (--gpus-per-node {most})" in result) is (most is not None)


@pytest.mark.parametrize(
    ("word", "meant"),
    [
        *[(word, None) for word in ("gaudi3", "tpu-v5e", "h30", "gtx-1080", "")],
        *[("h100-nvl", "h100-96gb"), ("b100", "b200"), ("mi250", "mi250x"), ("mi350x", "mi355x"), ("m300", "mi300x")],
        *[("a100-pcie", "a100-80gb-pcie"), ("a100-40", "a100-40gb"), ("a100-80g", "a100-80gb")],
        *[("rtx-4090-ti", "rtx-4090"), ("rxt4090", "rtx-4090"), ("rtx-5080", "rtx-5090"), ("hh100", "h100")],
        *[("H100 SXM4", "h100"), ("h101", "h100"), ("b200x", "b200")],
    ],
)
def test_unknown_gpus_suggest_what_is_like_them(word, meant):
    assert like_gpu(word, NAMES) == meant
    with pytest.raises(InvalidArgumentError) as raised:
        find_hardware(word)
    assert raised.value.remedy.startswith(f"{meant} (" if meant else "paceline list gpus")


@pytest.mark.parametrize(
    ("printed", "gpu"),
    [
        ("NVIDIA H100 80GB HBM3", "h100"),
        ("NVIDIA H100 PCIe", "h100-pcie"),
        ("NVIDIA H200", "h200"),
        ("NVIDIA H800", "h800"),
        ("NVIDIA B200", "b200"),
        ("NVIDIA GB200", "gb200"),
        ("NVIDIA GB300", "gb300"),
        ("NVIDIA A100-SXM4-40GB", "a100-40gb"),
        ("A100-SXM4-40GB", "a100-40gb"),
        ("NVIDIA A100-SXM4-80GB", "a100-80gb"),
        ("NVIDIA A100-SXM-80GB", "a100-80gb"),
        ("NVIDIA A100-PCIE-40GB", "a100-40gb-pcie"),
        ("NVIDIA A100 80GB PCIe", "a100-80gb-pcie"),
        ("NVIDIA A10G", "a10g"),
        ("NVIDIA L4", "l4"),
        ("NVIDIA L40S", "l40s"),
        ("NVIDIA GeForce RTX 3090", "rtx-3090"),
        ("NVIDIA GeForce RTX 4090", "rtx-4090"),
        ("GeForce RTX 3090", "rtx-3090"),
        ("Tesla T4", "t4"),
        ("NVIDIA TITAN X (Pascal)", "titan-x-pascal"),
        ("NVIDIA GeForce GTX TITAN X", "titan-x-maxwell"),
        ("Tesla V100-SXM2-16GB", "v100-16gb"),
        ("Tesla V100-SXM2-32GB", "v100-32gb"),
        ("nvidia-h100-80gb-hbm3", "h100"),
        ("h100-sxm5-80gb", "h100"),
        ("h100 sxm5 96gb", "h100-96gb"),
        ("rtx 4090 24gb", "rtx-4090"),
        ("rtx4090", "rtx-4090"),
        ("4090", "rtx-4090"),
        ("A100-80GB", "a100-80gb"),
        ("NVIDIA A800-SXM4-80GB", "a800-80gb"),
        ("NVIDIA GH200 480GB", "gh200"),
        ("NVIDIA RTX 6000 Ada Generation", "rtx-6000-ada"),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "rtx-pro-6000"),
        ("NVIDIA GeForce RTX 5090", "rtx-5090"),
        ("NVIDIA RTX A6000", "rtx-a6000"),
        ("NVIDIA L40", "l40"),
        ("NVIDIA A30", "a30"),
        ("AMD Instinct MI300X", "mi300x"),
    ],
)
def test_names_that_nvidia_smi_prints(printed, gpu):
    assert find_hardware(printed).name == gpu


@pytest.mark.parametrize("device", all_hardware(), ids=lambda device: device.name)
def test_a_title_is_a_name(device):
    assert find_hardware(device.title) == find_hardware(device.title.lower().replace(" ", "-")) == device


@pytest.mark.parametrize(
    ("printed", "like"),
    [
        # Others of their series: with the same memory, where there is one.
        ("Tesla V100-PCIE-16GB", "v100-16gb"),
        ("Tesla V100-PCIE-32GB", "v100-32gb"),
        ("Tesla V100-SXM3-32GB", "v100-32gb"),
        ("NVIDIA A800 80GB PCIe", "a100-80gb-pcie"),
        ("NVIDIA H100 80GB HBM2e", "h100"),
        ("NVIDIA H100 NVL", "h100-96gb"),
        ("NVIDIA H200 NVL", "h200"),
        ("NVIDIA GeForce RTX 3090 Ti", "rtx-3090"),
        # A part of a GPU is not the GPU.
        ("NVIDIA A100-SXM4-40GB MIG 1g.5gb", "a100-40gb"),
        *[(name, None) for name in ("Quadro P6000", "NVIDIA TITAN Xp", "Tesla P100-SXM2-16GB", "Tesla K80", "96gb")],
    ],
)
def test_full_names_of_other_gpus_suggest_what_is_like_them(printed, like):
    with pytest.raises(InvalidArgumentError, match="unknown GPU") as raised:
        find_hardware(printed)
    assert raised.value.remedy.startswith(f"{like} (" if like else "paceline list gpus")


def test_the_slot_of_a_gpu_without_nvlink_is_shown():
    for gpu, rate in (("rtx-4090", "24"), ("v100-16gb", None), ("h100-pcie", "48")):
        shown = cli.call("gpus", gpu).output
        row = next(line for line in cli.call("gpus").output.splitlines() if line.startswith(f"{gpu} "))
        assert (f"{rate} GB/s of PCI Express" in shown) == (rate is not None) == row.endswith(f" {rate}*")
    assert "over PCI Express of 192 Gbps" in verdict("gpt2-small", "--gpu", "rtx-4090", "--gpus", "8")


def test_names_of_similar_gpus_are_not_those_of_known_ones():
    known = [name for device in all_hardware() for name in (device.name, *device.aliases)]
    similar = [name for device in all_hardware() for name in device.like]
    assert len(set(known + similar)) == len(known + similar)


def test_gpus_of_data_centers_have_the_networks_that_they_are_sold_with():
    rates = {name: nodes_of(find_hardware(name)).cluster.bandwidth_bps for name in ("h20", "h800", "a800", "gh200")}
    assert rates == {"h20": 3.2e12, "h800": 3.2e12, "a800": 1.6e12, "gh200": 2e11}
    words = ("llama-3-8b", "--sharding", "zero3", "--gpus", 16)
    [h20], [h800] = forecast(*words, "--gpu", "h20"), forecast(*words, "--gpu", "h800")
    assert min(one["scaling_efficiency"] for one in (h20, h800)) > 0.8


@pytest.mark.parametrize("gpu", [device.name for device in all_hardware()])
def test_a_value_that_is_assumed_changes_nothing_when_it_is_given(gpu):
    [scenario] = prepared(gpu).scenarios
    assumed, base_s = scenario.cluster, result_of(scenario).iteration_s
    for options in (
        {"bandwidth": written_rate(assumed.bandwidth_bps)},
        {"gpus_per_node": assumed.gpus_per_node},
        {"latency": f"{assumed.latency_s!r}s"},
        {"channel": assumed.channel},
    ):
        [own] = prepared(gpu, **options).scenarios
        assert result_of(own).iteration_s == pytest.approx(base_s, rel=1e-9), options


def prepared(gpu, **options):
    words = {
        "gpu": gpu,
        "workers": 2 * nodes_of(find_hardware(gpu)).cluster.gpus_per_node,
        "sharding": "zero3",
        "seq": "512",
        **options,
    }
    return prepare(Sweep.of("llama-3.2-1b", words, SIMULATE, "flag", one_strategy=True))


def test_a_channel_that_is_not_usual_of_a_given_rate_is_said():
    words = ("llama-3-8b", "--gpu", "l40s", "--gpus", 16, "--sharding", "zero3")
    said = {
        (): "400 Gbps over TCP between nodes, as in g6e.48xlarge: instances have the L40S 48 GB "
        "(--gpus-per-node, --bandwidth, --channel, --cluster g6e.48xlarge, ",
        ("--bandwidth", "400Gbps"): "TCP between nodes, as in g6e.48xlarge: instances have the L40S 48 GB "
        "(--gpus-per-node, --channel, --cluster g6e.48xlarge, ",
    }
    for given, note in said.items():
        answer = " ".join(verdict(*words, *given).split())
        assert note in answer
        assert f"(assumed {note.partition(',')[0]}: --cluster or --{'channel' if given else 'bandwidth'})" in answer
    for given in (("--channel", "rdma"), ("--channel", "tcp")):
        assert "TCP between" not in " ".join(verdict(*words, "--bandwidth", "400Gbps", *given).split())
    # TCP is usual up to 25 Gbps, and RDMA above.
    assert "TCP between nodes" not in verdict(*words, "--bandwidth", "25Gbps")
    slow = verdict("gpt2-small", "--gpu", "h100", "--gpus", 16, "--bandwidth", "25Gbps")
    assert "Assumed dgx-h100 nodes with RDMA between nodes (--channel); choose others" in " ".join(slow.split())
    assert "RDMA between" not in verdict("gpt2-small", "--gpu", "h100", "--gpus", 16, "--bandwidth", "400Gbps")
    # A library with one channel assumes none.
    gloo = ("--library", "ddp-gloo", "--bandwidth", "100Gbps")
    assert "RDMA between" not in verdict("gpt2-small", "--gpu", "h20", "--gpus", 16, *gloo[:2])
    assert "TCP between" not in verdict("gpt2-small", "--gpu", "l40s", "--gpus", 16, *gloo)


def test_instances_that_have_a_gpu_are_named():
    for gpu, instance in (("rtx-a6000", "gpu_4x_a6000"), ("gh200", "gpu_1x_gh200"), ("l40s", "g6e.48xlarge")):
        [note] = [one for one in forecast("gpt2-small", "--gpu", gpu, "--gpus", 16)[0]["notes"] if "Assumed" in one]
        assert instance in note and "no built-in cluster" not in note
    [note] = [one for one in forecast("gpt2-small", "--gpu", "a40", "--gpus", 16)[0]["notes"] if "Assumed" in one]
    assert "no built-in cluster has the A40" in note


def test_an_assumed_network_that_limits_is_in_the_headline():
    words = ("llama-3-8b", "--gpu", "rtx-a6000", "--gpus", 16, "--sharding", "zero3", "--checkpointing", "full")
    assumed = "(assumed 25 Gbps between nodes: --cluster or --bandwidth)"
    assert assumed in " ".join(verdict(*words).split())
    for given in (("--bandwidth", "25Gbps"), ("--cluster", "gpu_4x_a6000"), ("--gpus", 8)):
        assert "assumed 25 Gbps" not in " ".join(verdict(*words, *given).split())


def test_advise_says_which_network_is_assumed_where_it_limits():
    words = ("advise", "llama-3-8b", "--gpu", "rtx-a6000", "--seq", 4096, "--sharding", "zero3", "--batch", 2)
    said = "Assumed      25 Gbps between nodes: --cluster or --bandwidth"
    assert said in cli.output(*words, "--gpus", 16)
    assert said not in cli.output(*words, "--gpus", 8)
    assert said not in cli.output(*words, "--gpus", 16, "--bandwidth", "25Gbps")


def test_a_network_of_a_device_file_is_checked(tmp_path):
    fields = json.loads((FOLDER / "h20.json").read_text())
    own = tmp_path / "own.json"
    for network in ("dgx-h100", {"like": "dgx-h100", "bandwidth": "1Gbps"}, {"rate": 1}):
        own.write_text(json.dumps(fields | {"network": network}))
        with pytest.raises(InvalidArgumentError, match="network: does not say what is between nodes"):
            find_hardware(str(own))
    own.write_text(json.dumps(fields | {"network": {"like": "dgx-h1"}}))
    with pytest.raises(InvalidArgumentError, match="dgx-h100"):
        nodes_of(find_hardware(str(own)))
