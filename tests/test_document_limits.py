"""Documents of any content are read within limits of memory and time: each number and quantity in turn an extreme."""

import copy
import gzip
import json
import os
import random
import sys
from pathlib import Path

import cli
import pytest
from paceline._core import Trace
from paceline._internal.documents import read_json, read_limited, read_small
from paceline.catalog.gpus import find_hardware
from paceline.catalog.models.config import built_in_configs
from paceline.errors import InvalidArgumentError

WORKER = Path(__file__).parent / "document_workers" / "commands.py"
LIMIT_MB, SECONDS = 1500, 60
NUMBERS = (2**31, 2**63, 2**64, 10**400, 1e308, 5e-324, -1, 0, 0.5, True, None, "", [], {})
UNITS = ("1e308{}", "0{}", "-1{}", "1e18{}", "1e-300{}", "9e15{}")


def cluster(**fields):
    return {
        **{"format": "paceline-cluster", "version": 1, "name": "mine", "bandwidth": "25Gbps", "latency": "10us"},
        **{"gpus_per_node": 2, "intra_bandwidth": "100Gbps", "switch": {"multicast": False, "aggregation": False}},
        **fields,
    }


CLUSTERS = [
    cluster(racks={"nodes_per_rack": 2, "oversubscription": 4.0}, stragglers=[{"rank": 1, "factor": 1.5}]),
    cluster(jitter={"sigma": 0.05}, degraded=[{"link": "node1", "factor": 0.5}], host_bandwidth="100Gbps"),
    cluster(
        switch={"multicast": True, "aggregation": True, "radix": 2, "memory": "10MB"},
        mesh={"peers": 2, "bridge": "40Gbps"},
    ),
    cluster(gpu="H100", nics_per_node=2, intra_link="nvswitch", reduction_bandwidth="100Gbps", node_contention=0.1),
    cluster(
        fabric={
            "kind": "leaf-spine",
            "nodes_per_leaf": 2,
            "spines": 2,
            "link_bandwidth": "100Gbps",
            "hop_latency": "1us",
        }
    ),
    cluster(fabric={"kind": "rails", "nodes_per_leaf": 2, "spines": 2, "oversubscription": 2.0}),
    cluster(fabric={"kind": "fat-tree", "radix": 4, "oversubscription": 1.0}),
    cluster(
        fabric={"kind": "dragonfly", "nodes_per_router": 2, "routers_per_group": 2, "global_links": 1, "groups": 2}
    ),
    cluster(fabric={"kind": "torus", "dimensions": [2, 2, 2], "link_bandwidth": "100Gbps"}),
    cluster(compression_costs=[{"method": "powersgd:4", "compress": {"bucket_s": 2e-5, "element_s": 1e-9}}]),
]
JOBS = {
    **{"nodes": 4, "bandwidth": "25Gbps", "latency": "10us", "gpus_per_node": 2, "network": "fluid", "iterations": 2},
    "racks": {"nodes_per_rack": 2, "oversubscription": 2.0},
    "job": [
        {"name": "a", "trace": "allreduce:1MB", "workers": 4, "strategy": "ring", "nodes": [0, 1], "start": "1ms"},
        {"name": "b", "trace": "allreduce:1MB", "workers": 2, "strategy": "tree", "bucket_size": "1MB"},
    ],
}
LLAMA = {**built_in_configs()["llama-3.2-1b"].fields, "num_hidden_layers": 2}
MIXTRAL = {**built_in_configs()["mixtral-8x7b"].fields, "num_hidden_layers": 2}
VIT = {**built_in_configs()["vit-base"].fields, "architectures": ["ViTForImageClassification"], "id2label": {"0": "a"}}
T5 = built_in_configs()["t5-small"].fields
GEMMA3 = {
    "model_type": "gemma3",
    "text_config": {"model_type": "gemma3_text", "num_hidden_layers": 2, "hidden_size": 64},
}
GRAPH = {
    **{"format": "paceline-graph", "version": 1, "name": "mine"},
    "nodes": [{"name": "a", "all_reduce": {"dtype": "float32", "bytes": 4096}}, {"name": "b"}],
    **{"edges": [["a", "b"]], "fetches": ["b"]},
}


def leaves(document, path=()):
    """Yield the places of all numbers and texts of a document."""
    items = document.items() if isinstance(document, dict) else enumerate(document)
    for key, value in items:
        if isinstance(value, (dict, list)):
            yield from leaves(value, (*path, key))
        yield (*path, key)


def changed(document, path, value):
    document = copy.deepcopy(document)
    place = document
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    return document


def extremes(document):
    """Yield the document with each of its values in turn an extreme."""
    for path in leaves(document):
        if path in (("format",), ("version",), ("model_type",)):
            continue
        value = document
        for key in path:
            value = value[key]
        unit = value.lstrip("0123456789.") if isinstance(value, str) else ""
        for extreme in (*NUMBERS, *(text.format(unit) for text in UNITS if unit not in ("", value))):
            yield changed(document, path, extreme)


def toml(document):
    """Return a document as TOML, which has no null."""

    def value(result):
        if isinstance(result, dict):
            return "{" + ", ".join(f"{key} = {value(one)}" for key, one in result.items()) + "}"
        if isinstance(result, list):
            return "[" + ", ".join(map(value, result)) + "]"
        return "''" if result is None else json.dumps(result)

    return "".join(f"{key} = {value(result)}\n" for key, result in document.items())


def cases(folder, kind):
    """Return the commands that read every changed document of a kind; the documents are written to the folder."""
    trace = json.loads(Trace.all_reduce("allreduce:1MB/2").to_json())
    simulate = ["simulate", "allreduce:1MB", "--workers", "4", "--json"]
    kinds = {
        "cluster": [(one, [*simulate, "--strategy", "ring,halving-doubling", "--cluster", "{}"]) for one in CLUSTERS],
        "cluster, fluid": [
            (one, [*simulate, "--network", "fluid", "--strategy", "tree", "--cluster", "{}"]) for one in CLUSTERS
        ],
        "cluster, nccl": [
            (one, ["simulate", "allreduce:1MB-4MB", "--gpus", "2,4", "--cluster", "{}"]) for one in CLUSTERS
        ],
        "cluster, shown": [(one, ["clusters", "{}"]) for one in CLUSTERS],
        "jobs": [(JOBS, ["simulate", "--jobs", "{}", "--json"])],
        "trace": [(trace, ["simulate", "{}", "--workers", "2", "--strategy", "ring", "--json"])],
        "model": [(one, ["models", "{}", "--gpu", "h100"]) for one in (LLAMA, MIXTRAL, VIT, T5, GEMMA3)],
        "model, forecast": [(LLAMA, ["simulate", "{}", "--gpu", "h100", "--gpus", "8", "--sharding", "zero3"])],
        "device": [(find_hardware("h100").document(), ["simulate", "gpt2-small", "--gpu", "{}", "--gpus", "8"])],
        "graph": [(GRAPH, ["plan", "{}"])],
        "constants": [
            (
                {"cycle_ms": 1.0},
                [
                    "simulate",
                    "resnet-18",
                    "--workers",
                    "2",
                    "--coordinator",
                    "negotiate",
                    "--coordinator-constants",
                    "{}",
                ],
            )
        ],
        "report": [
            (
                {"title": "a", "chapter": [{"trace": "allreduce:1MB", "workers": [2, 4], "bandwidth": ["1Gbps"]}]},
                ["report", "{}", "-o", str(folder / "page.html")],
            )
        ],
        "timeline": [
            ({"traceEvents": [{"ph": "X", "name": "a", "pid": 0, "tid": 0, "ts": 1.0, "dur": 2.0}]}, ["doctor", "{}"])
        ],
        "kineto": [
            (
                {
                    "traceEvents": [
                        {
                            "ph": "X",
                            "cat": "cpu_op",
                            "name": "ProfilerStep#1",
                            "pid": 0,
                            "tid": 0,
                            "ts": 1.0,
                            "dur": 2.0,
                        }
                    ],
                    "distributedInfo": {"world_size": 2, "rank": 0},
                },
                ["import-kineto", "{}", "-o", str(folder / "out.json")],
            )
        ],
    }
    values = []
    for document, words in kinds[kind]:
        for number, one in enumerate(extremes(document)):
            suffix = "toml" if kind in ("jobs", "report") else "json"
            path = folder / f"{len(values)}-{number}.{suffix}"
            path.write_text(toml(one) if suffix == "toml" else json.dumps(one), encoding="utf-8")
            values.append([str(path) if word == "{}" else word for word in words])
    return values


KINDS = (
    *("cluster", "cluster, fluid", "cluster, nccl", "cluster, shown", "jobs", "trace", "model", "model, forecast"),
    *("device", "graph", "constants", "report", "timeline", "kineto"),
)


def run(commands, seconds=SECONDS):
    lines = "".join(json.dumps(words) + "\n" for words in commands)
    words = [sys.executable, str(WORKER), str(LIMIT_MB), str(seconds)]
    done = cli.ended(*words, input=lines, timeout=3000)
    last = done.stdout.splitlines()[-1] if done.stdout else ""
    document = ""
    for word in json.loads(last).get("words", []) if last else []:
        if Path(word).suffix in (".json", ".toml") and Path(word).is_file():
            document = Path(word).read_text(encoding="utf-8")[:1500]
    assert done.returncode == 0, f"{done.returncode}: {last}\n{done.stderr[-800:]}\n{document}"


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_no_document_takes_memory_or_time_that_it_does_not_need(tmp_path, kind):
    run(cases(tmp_path, kind))


@pytest.mark.slow
def test_a_few_of_them(tmp_path):
    draw, commands = random.Random(1), []
    for number, kind in enumerate(KINDS):
        folder = tmp_path / str(number)
        folder.mkdir()
        commands += draw.sample(cases(folder, kind), 4)
    run(commands)


@pytest.mark.slow
def test_the_largest_counts(tmp_path):
    """What took 24 GB, or as many switches as a fabric may have."""
    described = [
        cluster(racks={"nodes_per_rack": 2**32 - 1, "oversubscription": 1.0}),
        cluster(fabric={"kind": "leaf-spine", "nodes_per_leaf": 1, "spines": 65536}),
        cluster(fabric={"kind": "rails", "nodes_per_leaf": 1, "spines": 65536}),
        cluster(fabric={"kind": "fat-tree", "radix": 128, "link_bandwidth": "1e6Tbps"}, bandwidth="1bps"),
        cluster(
            fabric={
                "kind": "dragonfly",
                "nodes_per_router": 1,
                "routers_per_group": 65536,
                "global_links": 1,
                "groups": 1,
            }
        ),
        cluster(fabric={"kind": "torus", "dimensions": [256, 256]}),
        cluster(fabric={"kind": "torus", "dimensions": [1] * 1000}),
    ]
    commands = []
    for number, one in enumerate(described):
        path = tmp_path / f"{number}.json"
        path.write_text(json.dumps(one), encoding="utf-8")
        commands.append(["simulate", "allreduce:1MB", "--workers", "64", "--strategy", "ring", "--cluster", str(path)])
    jobs = tmp_path / "jobs.toml"
    jobs.write_text(
        toml(changed({**JOBS, "nodes": 4}, ("racks", "nodes_per_rack"), 2**31)).replace("nodes = 4\n", ""),
        encoding="utf-8",
    )
    run([*commands, ["simulate", "--jobs", str(jobs)]])


# --- what is at a path ---------------------------------------------------------------------------------------------


def bomb(path, megabytes, byte=b"\0"):
    with gzip.open(path, "wb", 9) as file:
        for _ in range(megabytes):
            file.write(byte * 1_000_000)
    return path


def test_gzip_files_that_grow_a_thousandfold_are_refused(tmp_path):
    path = bomb(tmp_path / "bomb.et", 300)
    assert path.stat().st_size < 1_000_000
    with pytest.raises(OSError, match="unpacks to over 100 times its size, which no document does"):
        read_limited(path, 2_000_000_000, packed=True)
    run(
        [
            ["import-chakra", str(path), "-o", str(tmp_path / "o.json")],
            ["import-kineto", str(path), "-o", str(tmp_path / "o.json")],
        ]
    )


def test_files_of_zeros_are_no_traces(tmp_path):
    path = tmp_path / "zeros.et"
    path.write_bytes(b"\0" * 50_000_000)
    (tmp_path / "zeros.json").write_bytes(b"\0" * 50_000_000)
    run(
        [
            [f"import-{kind}", str(path.with_suffix(end)), "-o", str(tmp_path / "o.json")]
            for kind, end in (("chakra", ".et"), ("kineto", ".json"))
        ]
    )


def test_gzip_files_are_unpacked_in_members_and_within_limits(tmp_path):
    path = tmp_path / "some.gz"
    noise = random.Random(0).randbytes(3_000_000)
    path.write_bytes(gzip.compress(noise[:1_000_000]) + gzip.compress(noise[1_000_000:]) + b"\0" * 512)
    assert read_limited(path, 3_100_000, packed=True) == noise
    assert read_limited(path, 30_000_000) == path.read_bytes()
    with pytest.raises(OSError, match="has 3 MB, and at most 2 MB are read"):
        read_limited(path, 2_000_000, packed=True)
    path.write_bytes(gzip.compress(noise)[:-9])
    with pytest.raises(OSError, match="incomplete or damaged"):
        read_limited(path, 30_000_000, packed=True)
    path.write_bytes(gzip.compress(b""))
    assert read_limited(path, 100, packed=True) == b""
    # What repeats, but is small, is a document.
    path.write_bytes(gzip.compress(b" " * 50_000_000))
    assert len(read_limited(path, 100_000_000, packed=True)) == 50_000_000
    with pytest.raises(OSError, match="has more than 40 MB unpacked, and at most 40 MB are read"):
        read_limited(path, 40_000_000, packed=True)


def test_what_is_no_file_is_said(tmp_path):
    with pytest.raises(OSError, match="has more than 1 MB, and at most 1 MB are read"):
        read_limited(Path("/dev/zero"), 2_000_000_000)
    with pytest.raises(OSError, match="is a folder"):
        read_limited(tmp_path, 100)
    sparse = tmp_path / "sparse.json"
    with sparse.open("wb") as file:
        file.truncate(10**12)
    with pytest.raises(InvalidArgumentError, match=r"sparse.json: has 1000.0 GB, and at most 16 MB are read"):
        read_json(sparse, 16_000_000)
    with pytest.raises(OSError, match=r"does not begin with \{ or \["):
        with sparse.open("wb") as file:
            file.truncate(10**9)
        read_limited(sparse, 10**12, begins=b"{[")
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(OSError, match="no data from this pipe"):
        keep = os.open(pipe, os.O_RDWR)
        try:
            read_small(pipe, patience_s=0.1)
        finally:
            os.close(keep)


def test_devices_are_refused_by_every_command(tmp_path):
    zero, output = "/dev/zero", str(tmp_path / "out.json")
    simulate = ["simulate", "resnet-18", "--workers", "2"]
    run(
        [
            ["import-chakra", zero, "-o", output],
            ["import-kineto", zero, "-o", output],
            ["import-sends", zero, zero, "-o", output],
            ["import", "tensorflow", zero, "--batch", "8", "-o", output],
            ["simulate", "--config", zero, "--gpu", "h100", "--gpus", "8"],
            ["advise", "--config", zero, "--gpu", "h100", "--gpus", "8"],
            ["simulate", zero],
            ["simulate", "--jobs", zero],
            [*simulate, "--cluster", zero],
            [*simulate, "--strategy", "ps", "--placement", zero],
            [*simulate, "--coordinator", "negotiate", "--coordinator-constants", zero],
            ["models", zero],
            ["gpus", zero],
            ["clusters", zero],
            ["traces", zero],
            ["report", zero, "-o", output],
            ["bench", "--read", zero],
            ["doctor", zero],
            ["plan", zero],
            ["study", "published", "--data", zero],
            ["run", "-np", "2", "--hostfile", zero, "true"],
        ],
        seconds=20,
    )
