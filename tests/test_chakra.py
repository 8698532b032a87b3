"""`paceline export chakra` and `import-chakra`.

The files in tests/data/interop were written by Google's protobuf from MLCommons' schema.
"""

import json
from pathlib import Path

import paceline
import pytest
from cli import answer as done
from cli import refused
from hypothesis import given, settings
from hypothesis import strategies as st
from paceline.errors import InvalidArgumentError
from paceline.interop.chakra_file import Attribute, ExecutionTrace, Node, NodeType, read, write

pytest.importorskip("google.protobuf", reason="Chakra's files need protobuf: the extra chakra")

DATA = Path(__file__).parent / "data" / "interop"


@pytest.mark.parametrize("bucket", ["25MB", "none", "1MB"])
@pytest.mark.parametrize("name", ["resnet-50", "tiny", "two"])
def test_round_trip(tmp_path, name, bucket):
    source = name
    if name != "resnet-50":
        document = json.loads((Path(__file__).parent.parent / "examples" / "tiny.json").read_text())
        if name == "two":  # Two recorded workers, a distribution, exact times.
            other = json.loads(json.dumps(document["workers"][0]))
            other["forward"][0]["duration_s"] = 0.012345678901
            document["workers"].append(other)
            document["distribution"] = ["fc.weight", {"tensor": "moving_mean", "bytes": 256}]
            document["variation"] = {"backward_spread": 0.05}
            document["workers"][0]["forward"][0]["activation_bytes"] = 802_816
            document["workers"][1]["forward"][1]["activation_bytes"] = 0
        source = tmp_path / "source.json"
        source.write_text(json.dumps(document))
    summary = done("export-chakra", source, "--workers", 4, "--bucket-size", bucket, "-o", tmp_path / "job")
    assert len(summary["files"]) == 4
    back = done("import-chakra", *summary["files"], "-o", tmp_path / "back.json")
    assert back["collectives"] == summary["collectives"]
    assert paceline.load_trace(source) == paceline.load_trace(tmp_path / "back.json")


def test_what_astra_sim_reads(tmp_path):
    done("export-chakra", "resnet-50", "--workers", 2, "-o", tmp_path / "job")
    trace = read(tmp_path / "job.1.et")
    nodes = {node.id: node for node in trace.nodes}
    collectives = [node for node in trace.nodes if node.type == NodeType.COMM_COLL]
    computations = [node for node in trace.nodes if node.type == NodeType.COMP]
    resnet = paceline.load_trace("resnet-50")
    assert sum(node.value("comm_size") for node in collectives) == resnet.gradient_bytes
    assert all(node.attributes["comm_type"] == Attribute("int64_val", 0) for node in collectives)
    assert all(node.value("is_cpu_op") is False for node in trace.nodes)
    assert all(parent in nodes and parent < node.id for node in trace.nodes for parent in node.data_deps)
    assert computations[-1].name == "optimizer"
    assert {node.id for node in collectives} < set(computations[-1].data_deps)
    total = resnet.forward_s + resnet.backward_s + resnet.optimizer_s
    assert sum(node.duration_us for node in computations) == pytest.approx(total * 1e6, abs=1)


def test_a_file_of_chakras_text_converter(tmp_path):
    done("import-chakra", DATA / "data-parallel.0.et", "--batch", 4, "-o", tmp_path / "t.json")
    document = json.loads((tmp_path / "t.json").read_text())
    assert (document["name"], document["batch"]) == ("data-parallel", 4)
    assert document["workers"] == [
        {
            "forward": [
                {"layer": "embed", "duration_s": 100e-6, "tensors": ["embed.0"]},
                {"layer": "block", "duration_s": 300e-6, "tensors": ["block.0"]},
                {"layer": "head", "duration_s": 200e-6, "tensors": ["head.0"]},
            ],
            "gradients": [
                {"tensor": "head.0", "ready_s": 100e-6, "bytes": 8192},
                {"tensor": "block.0", "ready_s": 500e-6, "bytes": 65536},
                {"tensor": "embed.0", "ready_s": 760e-6, "bytes": 4096},
            ],
            "backward_s": 760e-6,
            "optimizer_s": 0.0,
        }
    ]


def test_every_kind_of_attribute(tmp_path):
    trace = read(DATA / "attributes.0.et")
    (node,) = trace.nodes
    assert (node.ctrl_deps, node.start_us) == ([1, 300], 12)
    values = {name: attribute.value for name, attribute in node.attributes.items()}
    assert len(values) == 30
    assert values["uint64_val"] == 2**63 + 1
    assert values["int64_val"] == -9876543210
    assert values["sint32_val"] == -5
    assert values["sfixed64_val"] == -11
    assert values["string_val"] == "é"
    assert values["fixed32_list"] == [1, 2]
    assert values["int32_list"] == [-1, 2]
    assert values["bool_list"] == [True, False]
    write(tmp_path / "again.et", trace)
    assert read(tmp_path / "again.et") == trace


@settings(max_examples=50, deadline=None)
@given(
    st.lists(
        st.builds(
            Node,
            id=st.integers(0, 2**64 - 1),
            name=st.text(),
            type=st.integers(0, 7),
            data_deps=st.lists(st.integers(0, 2**64 - 1)),
            start_us=st.integers(0, 2**64 - 1),
            duration_us=st.integers(0, 2**64 - 1),
            attributes=st.dictionaries(
                st.text(),
                st.one_of(
                    st.builds(Attribute, st.just("int64_val"), st.integers(-(2**63), 2**63 - 1)),
                    st.builds(Attribute, st.just("sint64_list"), st.lists(st.integers(-(2**63), 2**63 - 1))),
                    st.builds(Attribute, st.just("string_list"), st.lists(st.text())),
                    st.builds(Attribute, st.just("double_val"), st.floats(allow_nan=False)),
                ),
            ),
        )
    )
)
def test_what_is_written_is_read(tmp_path_factory, nodes):
    path = tmp_path_factory.mktemp("chakra") / "t.et"
    trace = ExecutionTrace("1.0.0", {"schema": Attribute("string_val", "x")}, nodes)
    write(path, trace)
    assert read(path) == trace


@settings(max_examples=200, deadline=None)
@given(st.sampled_from(["data-parallel.0.et", "attributes.0.et"]), st.data())
def test_damaged_files_are_refused_or_read(tmp_path_factory, name, data):
    content = bytearray((DATA / name).read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    path = tmp_path_factory.mktemp("chakra") / "t.et"
    path.write_bytes(content[: data.draw(st.integers(0, len(content)))])
    try:
        read(path)
    except InvalidArgumentError as error:
        assert str(error).startswith(f"{path}: ")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "is empty"),
        (b'{"traceEvents": []}', "import kineto"),
        (b"\x80", "try: a whole Chakra execution trace of et_def.proto (.et)"),
        (b"\x05abc", "its first message, at byte 0: "),
        (b"\x02\x0f\x00", "try: a whole Chakra execution trace of et_def.proto (.et)"),
        (b"\x1f\x8b\x00", "gzip"),
    ],
)
def test_bad_files(tmp_path, content, words):
    path = tmp_path / "t.0.et"
    path.write_bytes(content)
    message = refused("import-chakra", path, "--batch", 1, "-o", tmp_path / "t.json")
    assert words in message
    assert "t.0.et" in message


def foreign(tmp_path, *nodes):
    path = tmp_path / "t.0.et"
    write(path, ExecutionTrace("1.0.0", {}, list(nodes)))
    return path


def computation(number, name, duration, *deps):
    return Node(number, name, NodeType.COMP, data_deps=list(deps), duration_us=duration)


def all_reduce(number, size, *deps):
    about = {"comm_type": Attribute("int64_val", 0), "comm_size": Attribute("int64_val", size)}
    return Node(number, "nccl", NodeType.COMM_COLL, data_deps=list(deps), attributes=about)


def test_names_that_do_not_tell_need_the_forward_pass(tmp_path):
    path = foreign(tmp_path, computation(0, "a", 10), computation(1, "b", 30, 0), all_reduce(2, 64, 1))
    output = tmp_path / "t.json"
    assert "--forward" in refused("import-chakra", path, "--batch", 1, "-o", output)
    assert "--forward" in refused("import-chakra", path, "--batch", 1, "--forward", "1s", "-o", output)
    summary = done("import-chakra", path, "--batch", 1, "--forward", "10us", "-o", output)
    assert summary["forward_s"] == pytest.approx(10e-6)
    assert summary["backward_s"] == pytest.approx(30e-6)
    assert "reverse order" in summary["notes"][0]


def test_mistakes_in_graphs(tmp_path):
    output = tmp_path / "t.json"
    words = ("--batch", 1, "-o", output)
    assert "--batch" in refused("import-chakra", foreign(tmp_path, computation(0, "a", 1)), "-o", output)
    assert "depends on 9" in refused("import-chakra", foreign(tmp_path, computation(0, "a", 1, 9)), *words)
    circle = foreign(tmp_path, computation(0, "a", 1, 1), computation(1, "b", 1, 0))
    assert "wait for each other" in refused("import-chakra", circle, *words)
    twice = foreign(tmp_path, computation(0, "a", 1), computation(0, "b", 1))
    assert "two nodes have the id 0" in refused("import-chakra", twice, *words)
    assert "no all-reduce" in refused("import-chakra", foreign(tmp_path, computation(0, "a", 1)), *words)
    assert "duration_micros" in refused("import-chakra", foreign(tmp_path, all_reduce(0, 4)), *words)


def test_options_without_effect(tmp_path):
    done("export-chakra", "resnet-50", "--workers", 1, "-o", tmp_path / "job")
    message = refused("import-chakra", tmp_path / "job.0.et", "--batch", 4, "-o", tmp_path / "t.json")
    assert "which says so itself" in message
    assert "--workers" in refused("export-chakra", "resnet-50", "-o", tmp_path / "job")
