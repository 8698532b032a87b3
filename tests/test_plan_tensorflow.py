"""Graphs of TensorFlow's, where it is installed (`make test-all` installs it)."""

import importlib.util
from functools import partial
from pathlib import Path

import cli
import pytest
from paceline import InvalidArgumentError, plan_tensorflow

refused = partial(cli.refused, "plan")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec("tensorflow") is None, reason="TensorFlow is not installed"),
]
HOROVOD = Path(__file__).parent / "data" / "horovod.pbtxt"


@pytest.fixture(scope="module")
def tf():
    return pytest.importorskip("tensorflow")


def summed(tf, tensor):
    """An all-reduce of tf.distribute's; it is never run."""
    return tf.raw_ops.NcclAllReduce(input=tensor, reduction="sum", num_devices=1, shared_name="sum")


def planned(*words):
    answer = cli.answer("plan", *words)
    return [[answer["tensors"][tensor]["name"] for tensor in bucket["tensors"]] for bucket in answer["buckets"]], answer


def test_a_graph_as_text_whose_operations_belong_to_a_library_that_is_not_here():
    names, result = planned(HOROVOD, "--fetch", "train")
    assert names == [["reduce/first", "reduce/third"], ["reduce/second"]]
    assert [(tensor["dtype"], tensor["bytes"]) for tensor in result["tensors"]] == [
        ("float32", 48),
        ("float32", 48),
        ("float16", 24),
    ]
    assert result["nodes"] == 8
    assert planned(HOROVOD, "--fetch", "reduce/third:0")[0] == [["reduce/third"]]


def test_mistakes_in_files(tmp_path):
    assert "try: --fetch not_needed (nothing needs not_needed, train)" in refused(HOROVOD)
    assert "no node is called 'trian'\n  try: 'train'" in refused(HOROVOD, "--fetch", "trian")
    assert "matches 'Nothing*'" in refused(HOROVOD, "--fetch", "train", "--all-reduce", "Nothing*")
    assert "--unknown-size has no effect" in refused(HOROVOD, "--fetch", "train", "--unknown-size", "1MB")
    assert "--signature has no effect" in refused(HOROVOD, "--signature", "s")
    for name, content, says in [
        ("a.pb", b"\xff\xff\xff", "is not a GraphDef"),
        ("b.pb", b"", "has no nodes\n  try: a GraphDef"),
        ("c.pbtxt", b"node { nome: 1 }", "is not a GraphDef"),
        ("d.pbtxt", b"\xff", "is not UTF-8 (at byte 0)"),
        ("saved_model.pb", b"", "has no graph"),
    ]:
        (tmp_path / name).write_bytes(content)
        assert says in refused(tmp_path / name, "--fetch", "x")


def test_shapes_that_nobody_knows(tmp_path):
    text = HOROVOD.read_text().replace("dim { size: 6 }", "dim { size: -1 }")
    (tmp_path / "open.pbtxt").write_text(text)
    error = refused(tmp_path / "open.pbtxt", "--fetch", "train")
    assert "the all-reduce 'reduce/first' has no known shape" in error and "--unknown-size" in error
    _, result = planned(tmp_path / "open.pbtxt", "--fetch", "train", "--unknown-size", "2KB")
    assert [tensor["bytes"] for tensor in result["tensors"]] == [2000, 2000, 2000]


def test_a_pattern_makes_other_nodes_all_reduces():
    names, _ = planned(HOROVOD, "--fetch", "reduce/second", "--all-reduce", "spl*")
    assert names == [["split"], ["reduce/first"], ["reduce/second"]]


def training(tf):
    weights = [tf.Variable(tf.zeros([4, 8])), tf.Variable(tf.zeros([8, 2]))]

    @tf.function
    def inner(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.nn.relu(x @ weights[0]) @ weights[1])
        for weight, gradient in zip(weights, tape.gradient(loss, weights), strict=True):
            weight.assign_sub(summed(tf, gradient))
        return loss

    return tf.function(lambda x: summed(tf, inner(x)) + 1.0, input_signature=[tf.TensorSpec([3, 4])])


def test_a_function_that_calls_a_function(tf):
    plan = plan_tensorflow(training(tf))
    inside = [tensor for tensor in plan.tensors if "PartitionedCall/" in tensor.name]
    assert [(tensor.dtype, tensor.bytes) for tensor in inside] == [("float32", 64), ("float32", 128)]
    # A tf.function returns only after what it does besides: the loss waits for both gradients.
    assert [bucket.bytes for bucket in plan.buckets] == [192, 4]


def test_what_is_fetched_of_a_function(tf):
    concrete = training(tf).get_concrete_function()
    assert len(plan_tensorflow(concrete, [concrete.outputs[0].name]).tensors) == 3
    inside = "StatefulPartitionedCall/NcclAllReduce:0"
    assert [tensor.bytes for tensor in plan_tensorflow(concrete.graph, [inside]).tensors] == [128]
    with pytest.raises(InvalidArgumentError, match="no node is called 'nothing'"):
        plan_tensorflow(concrete, ["nothing"])


def test_functions_need_arguments(tf):
    function = tf.function(lambda x: summed(tf, x))
    with pytest.raises(InvalidArgumentError, match=r"needs arguments to be traced(.|\n)*try: example="):
        plan_tensorflow(function)
    assert plan_tensorflow(function, example=[tf.zeros([5])]).tensors[0].bytes == 20
    with pytest.raises(InvalidArgumentError, match="int is no graph"):
        plan_tensorflow(7)


@pytest.mark.parametrize("taken", [True, False])
def test_branches_on_constants(tf, taken):
    @tf.function(input_signature=[tf.TensorSpec([5])])
    def step(x):
        return tf.cond(tf.constant(taken), lambda: summed(tf, x * 2.0), lambda: x)

    assert [tensor.bytes for tensor in plan_tensorflow(step).tensors] == ([20] if taken else [])


def test_branches_and_loops_on_data_have_no_plan(tf):
    @tf.function(input_signature=[tf.TensorSpec([5])])
    def branch(x):
        return tf.cond(tf.reduce_sum(x) > 0.0, lambda: summed(tf, x), lambda: x)

    @tf.function(input_signature=[tf.TensorSpec([5])])
    def loop(x):
        return tf.while_loop(lambda x: tf.reduce_sum(x) > 0.0, lambda x: [summed(tf, x)], [x])

    for function in (branch, loop):
        with pytest.raises(InvalidArgumentError, match="has all-reduces in a branch or a loop that depends on data"):
            plan_tensorflow(function)


def test_collectives_take_more_than_the_tensor(tf):
    with tf.Graph().as_default() as graph:
        numbers = [tf.constant(1) for _ in range(3)]
        x = tf.compat.v1.placeholder(tf.float16, [7, 3])
        reduced = tf.raw_ops.CollectiveReduceV2(
            input=x,
            group_size=numbers[0],
            group_key=numbers[1],
            instance_key=numbers[2],
            ordering_token=[],
            merge_op="Add",
            final_op="Id",
        )
    plan = plan_tensorflow(graph.as_graph_def(), [reduced.name])
    assert [(tensor.dtype, tensor.bytes) for tensor in plan.tensors] == [("float16", 42)]


def test_grouped_all_reduces_count_all_their_tensors(tf):
    with tf.Graph().as_default() as graph:
        tensors = [tf.compat.v1.placeholder(tf.float32, [length]) for length in (3, 5)]
        tf.raw_ops.IdentityN(input=tensors, name="group")
    graph_def = graph.as_graph_def()
    node = next(node for node in graph_def.node if node.name == "group")
    node.op = "HorovodGroupedAllreduce"
    del node.attr["T"]
    node.attr["T"].type = tf.float32.as_datatype_enum
    node.attr["num_tensors"].i = 2
    assert [tensor.bytes for tensor in plan_tensorflow(graph_def, ["group:1"]).tensors] == [32]


def called(tf, times, levels):
    """A graph of functions that each call the next one."""
    graph_def = tf.compat.v1.GraphDef()
    for level in range(levels):
        function = graph_def.library.function.add()
        function.signature.name = f"f{level}"
        for time in range(times):
            function.node_def.add(name=f"call{time}", op=f"f{level + 1 if level + 1 < levels else 0}")
    graph_def.node.add(name="call", op="f0")
    return graph_def


@pytest.mark.parametrize("levels", [2, 5000])
def test_functions_that_call_each_other_without_end(tf, levels):
    with pytest.raises(InvalidArgumentError, match="functions call each other more than 200 deep"):
        plan_tensorflow(called(tf, 1, levels), ["call"])


def test_functions_that_call_each_other_too_often(tf):
    graph_def = called(tf, 2, 30)
    graph_def.library.function[-1].ClearField("node_def")
    with pytest.raises(InvalidArgumentError, match="has more than 1000000 operations"):
        plan_tensorflow(graph_def, ["call"])


def test_a_saved_model(tf, tmp_path):
    class Step(tf.Module):
        @tf.function(input_signature=[tf.TensorSpec([6])])
        def first(self, x):
            return {"sum": summed(tf, x)}

        @tf.function(input_signature=[tf.TensorSpec([2])])
        def second(self, x):
            return {"sum": summed(tf, summed(tf, x))}

    step = Step()
    folder = tmp_path / "step"
    tf.saved_model.save(step, str(folder), signatures={"first": step.first, "second": step.second})
    _, result = planned(folder, "--signature", "first")
    assert [tensor["bytes"] for tensor in result["tensors"]] == [24]
    assert result["graph"] == "step"
    names, _ = planned(folder, "--signature", "second")
    assert [len(bucket) for bucket in names] == [1, 1]
    assert "has the signatures first, second; name one by --signature" in refused(folder)
    assert "--signature first (it has first, second)" in refused(folder, "--signature", "third")
