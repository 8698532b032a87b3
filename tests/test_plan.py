"""`paceline plan` on graphs in our own format, and the same from Python."""

import json
import sys
from functools import partial
from pathlib import Path

import cli
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from paceline import InvalidArgumentError
from paceline_lab.plan import Graph, plan_graph

refused = partial(cli.refused, "plan")

planned = partial(cli.printed, "plan")

FIVE = Path(__file__).parent.parent / "examples" / "five-all-reduces.json"
DOCUMENT = Path(__file__).parent.parent / "docs" / "reference" / "coordinator-plan.md"


def written(tmp_path, **changes):
    document = {**json.loads(FIVE.read_text()), **changes}
    path = tmp_path / "graph.json"
    path.write_text(json.dumps({name: value for name, value in document.items() if value is not None}))
    return path


def test_the_published_example():
    assert plan_graph(Graph.read(FIVE)).names() == [["0", "1"], ["2"], ["3", "4"]]


def test_ids_as_listed(tmp_path):
    late = {"name": "late", "all_reduce": {"dtype": "float32", "bytes": 4}}
    deep = [{"name": "deep", "all_reduce": {"dtype": "float32", "bytes": 4}}, late]
    path = written(
        tmp_path,
        nodes=[{"name": "a"}, {"name": "b"}, *deep],
        edges=[["a", "b"], ["b", "deep"]],
        fetches=["deep", "late"],
    )
    assert plan_graph(Graph.read(path)).names() == [["late", "deep"]]
    assert plan_graph(Graph.read(path), ids="listed").names() == [["deep", "late"]]
    assert "'late'" not in refused(path, "--ids", "name")
    path = written(tmp_path, nodes=[late, {"name": "a"}], edges=[["a", "late"]], fetches=["late"])
    assert "'late' comes before 'a', which it needs" in refused(path, "--ids", "listed")
    with pytest.raises(InvalidArgumentError, match="try: one of depth, listed"):
        plan_graph(Graph.read(path), ids="name")


def test_the_example_is_the_documented_one():
    assert FIVE.read_text() in DOCUMENT.read_text()


def test_json():
    answer = json.loads(planned(FIVE, "--json", "--bucket-size", "5MB"))
    assert list(answer) == ["format", "version", "graph", "nodes", "edges", "bucket_size_bytes", "tensors", "buckets"]
    assert (answer["graph"], answer["nodes"], answer["bucket_size_bytes"]) == ("five all-reduces", 7, 5_000_000)
    assert answer["tensors"][4] == {
        "id": 4,
        "name": "4",
        "dtype": "float32",
        "bytes": 1_000_000,
        "depth": 2,
        "bucket": 3,
    }
    assert answer["buckets"][3] == {"dtype": "float32", "bytes": 2_000_000, "tensors": [3, 4]}


def test_nodes_edges_and_the_time_of_a_traversal():
    """The columns of Table I of the publication, of what the fetches need."""
    for words, nodes, edges in (((), 7, 4), (("--fetch", "3"), 3, 2)):
        answer = json.loads(planned(FIVE, "--json", "--time", *words))
        assert (answer["nodes"], answer["edges"]) == (nodes, edges)
        assert 0 < answer["traversal_ms"] < 1000
    assert "traversal_ms" not in json.loads(planned(FIVE, "--json"))
    text = planned(FIVE, "--time")
    assert "  Fetches      need 7 of 7 nodes\n  Edges        4\n  Traversal    " in text


def test_fetches_are_those_of_the_file_unless_others_are_named(tmp_path):
    assert "  Fetches      need 7 of 7 nodes\n" in planned(FIVE)
    some = planned(FIVE, "--fetch", "3", "--bucket-size", "none")
    assert some.startswith("five all-reduces: 3 all-reduces in 3 buckets, 9 MB\n")
    assert "  Fetches      need 3 of 7 nodes\n  Not needed   2 all-reduces\n" in some
    nothing = planned(FIVE, "--fetch", "forward")
    assert nothing.startswith("five all-reduces: nothing to plan\n") and "need 1 of 7 nodes" in nothing
    unnamed = written(tmp_path, fetches=None)
    assert "names no fetches" in refused(unnamed)
    assert "5 all-reduces" in planned(unnamed, "--fetch", "1,3,4")


def test_what_is_written_is_what_was_read(tmp_path):
    planned(FIVE, "-o", tmp_path / "copy.json")
    assert (tmp_path / "copy.json").read_text() == FIVE.read_text()
    assert "--output" in refused(FIVE, "-o", tmp_path)
    copy = tmp_path / "copy.json"
    assert "would overwrite GRAPH" in refused(copy, "-o", tmp_path / "." / "copy.json")
    assert copy.read_text() == FIVE.read_text()


def test_mistakes(tmp_path):
    assert "no such file" in refused("nowhere.json", "--fetch", "a")
    assert "no node is called 'backwards'\n  try: 'backward'" in refused(FIVE, "--fetch", "backwards")
    cycle = [*json.loads(FIVE.read_text())["edges"], ["3", "0"]]
    assert "graph.json: the graph has a cycle: '3' -> '0' -> '2' -> '3'\n" in refused(written(tmp_path, edges=cycle))
    assert "edges[0][1]: no node is called '9'" in refused(written(tmp_path, edges=[["0", "9"]]))
    assert "nodes: is missing" in refused(written(tmp_path, nodes=None))
    assert "this is a trace" in refused(FIVE.with_name("tiny.json"))
    assert "has no unit" in refused(FIVE, "--bucket-size", "64")
    for option in ("--all-reduce=X*", "--unknown-size=1MB", "--signature=s"):
        assert f"{option.split('=')[0]} has no effect on" in refused(FIVE, option)
    with pytest.raises(InvalidArgumentError, match="must be at least 0 bytes"):
        plan_graph(Graph.read(FIVE), bucket_size=-1)


def test_tensorflow_is_said_to_be_missing(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "tensorflow", None)
    (tmp_path / "graph.pb").write_bytes(b"\x0a\x00")
    assert "pip install '.[tensorflow]'" in refused(tmp_path / "graph.pb", "--fetch", "a")
    assert "no such file" in refused(tmp_path / "other.pb", "--fetch", "a")
    assert "is a folder without saved_model.pb" in refused(tmp_path)


def test_nothing_heavy_is_imported():
    code = (
        "import sys\nfrom paceline.cli.main import main\n"
        f"try: main(['plan', {str(FIVE)!r}])\nexcept SystemExit: pass\n"
        "print([name for name in ('torch', 'numpy', 'tensorflow', 'matplotlib') if name in sys.modules])"
    )
    ended = cli.ended(sys.executable, "-c", code, check=True)
    assert ended.stdout.startswith("five all-reduces") and ended.stdout.endswith("\n[]\n")


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 11), st.integers(0, 11)), max_size=30), st.integers(0, 64))
def test_dependent_tensors_are_in_different_buckets(pairs, bucket_size):
    edges = [(f"n{min(pair)}", f"n{max(pair)}") for pair in pairs if pair[0] != pair[1]]
    nodes = [{"name": f"n{n}", "all_reduce": {"dtype": "int8", "bytes": 1 + n}} for n in reversed(range(12))]
    document = {"format": "paceline-graph", "version": 1, "nodes": nodes, "edges": edges}
    graph = Graph.from_json(json.dumps(document).encode(), "drawn")
    plan = plan_graph(graph, [f"n{n}" for n in range(12)], bucket_size)
    bucket = {tensor.name: tensor.bucket for tensor in plan.tensors}
    assert len(bucket) == 12
    assert all(bucket[parent] < bucket[child] for parent, child in edges)
    assert all(entry.bytes <= bucket_size or len(entry.tensors) == 1 for entry in plan.buckets)
