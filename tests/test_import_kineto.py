"""`paceline import kineto`: traces of torch.profiler, real ones of the CPU and written ones in the GPU's shape."""

import gzip
import json
from functools import partial
from pathlib import Path

import cli
import pytest
from paceline.interop.collectives import describe, is_kernel, kind_of
from paceline.interop.kineto_file import Event
from paceline.interop.timeline import Clock, difference, intersection, union

run = partial(cli.call, "import-kineto")

REAL = Path(__file__).parent / "data" / "interop" / "ddp-gloo.json.gz"


def imported(tmp_path, *words):
    output = tmp_path / "trace.json"
    summary = cli.answer("import-kineto", *words, "-o", output)
    return json.loads(output.read_text()), summary


def refused(tmp_path, *words):
    return cli.refused("import-kineto", *words, "-o", tmp_path / "made.json")


class Recording:
    """A step of two linear layers on a GPU, in microseconds, as torch.profiler records it."""

    def __init__(
        self, *, shapes=True, nccl="ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
    ):
        self.events = []
        self.next = 1
        self.shapes = shapes
        self.nccl = nccl

    def add(self, name, category, start, duration, tid=1, **args):
        event = {"ph": "X", "cat": category, "name": name, "pid": 7, "tid": tid, "ts": start, "dur": duration}
        self.events.append({**event, "args": args})

    def operator(self, name, start, duration, *, sequence=None, dims=None, tid=1):
        args = {"External id": self.next}
        self.next += 1
        if sequence is not None:
            args |= {"Sequence number": sequence, "Fwd thread id": 0 if tid == 1 else 1}
        if dims is not None and self.shapes:
            args |= {"Input Dims": dims, "Input type": ["float"] * len(dims)}
        self.add(name, "cpu_op", start, duration, tid, **args)
        return args["External id"]

    def kernel(self, name, launched, start, duration, *, stream=7, tid=1, external=None, **args):
        number = 1000 + len(self.events)
        self.add("cudaLaunchKernel", "cuda_runtime", launched, 2, tid, correlation=number)
        about = {"correlation": number, "stream": stream, "device": 0}
        if external is not None:
            about["External id"] = external
        self.add(name, "kernel", start, duration, stream, **about, **args)

    def linear(self, at, sequence, device, dims):
        self.operator("aten::linear", at, 8, sequence=sequence, dims=dims)
        self.operator("aten::addmm", at + 2, 5, sequence=sequence, dims=dims)
        self.kernel("ampere_sgemm", at + 3, device, 100)

    def backward(self, at, sequence, device, dims):
        name = "autograd::engine::evaluate_function: AddmmBackward0"
        self.operator(name, at, 10, sequence=sequence, tid=2)
        self.kernel("ampere_sgemm", at + 1, device, 200, tid=2)
        self.operator("autograd::engine::evaluate_function: torch::autograd::AccumulateGrad", at + 10, 6, tid=2)
        self.operator("torch::autograd::AccumulateGrad", at + 11, 2, dims=dims, tid=2)

    def all_reduce(self, at, device, duration, elements, *, known=True):
        args = {"Collective name": "allreduce", "In msg nelems": elements, "Out msg nelems": elements, "dtype": "Float"}
        external = self.operator("c10d::allreduce_", at, 3, tid=2)
        self.kernel(self.nccl, at + 1, device, duration, stream=20, tid=2, external=external, **(args if known else {}))

    def step(self, at=0, *, known=True):
        """Forward 2 x 100 us, backward 2 x 200 us with a gap, an all-reduce that the optimizer waits for."""
        self.add("ProfilerStep#3", "user_annotation", at, 1000)
        self.add("DistributedDataParallel.forward", "user_annotation", at + 8, 24)
        self.linear(at + 10, 5, at + 50, [[4, 8], [8, 16]])
        self.linear(at + 20, 6, at + 150, [[4, 16], [16, 2]])
        self.backward(at + 40, 6, at + 250, [[32]])
        self.backward(at + 60, 5, at + 450, [[128]])
        self.all_reduce(at + 71, at + 500, 350, 160, known=known)
        self.operator("Optimizer", at + 90, 30)
        self.add("Optimizer.step#SGD.step", "user_annotation", at + 90, 30)
        # Launched long ago, but on a stream that waits for the all-reduce: 650 to 850 is exposed.
        self.kernel("multi_tensor_apply", at + 95, at + 850, 40)

    def write(self, path, **about):
        document = {
            "schemaVersion": 1,
            "deviceProperties": [{"id": 0, "name": "NVIDIA A100-SXM4-80GB"}],
            "distributedInfo": {"backend": "nccl", "rank": 0, "world_size": 8},
            "traceEvents": self.events,
            **about,
        }
        path.write_text(json.dumps(document))
        return path


def test_a_gpus_layers_gradients_and_waits(tmp_path):
    recording = Recording()
    recording.step()
    trace, summary = imported(tmp_path, recording.write(tmp_path / "rank0.json"))
    worker = trace["workers"][0]
    assert worker["forward"] == [
        {"layer": "aten::linear", "duration_s": 100e-6, "tensors": ["aten::linear.0"]},
        {"layer": "aten::linear#2", "duration_s": 100e-6, "tensors": ["aten::linear#2.0"]},
    ]
    assert worker["gradients"] == [
        {"tensor": "aten::linear#2.0", "ready_s": 200e-6, "bytes": 128},
        {"tensor": "aten::linear.0", "ready_s": 400e-6, "bytes": 512},
    ]
    assert worker["backward_s"] == pytest.approx(400e-6)
    # The wait of 200 us for the all-reduce is not the optimizer's.
    assert worker["optimizer_s"] == pytest.approx(40e-6)
    assert (trace["batch"], trace["dtype"], trace["library"]) == (4, "float32", "ddp")
    assert trace["device"] == "NVIDIA A100-SXM4-80GB"
    (collective,) = summary["collectives"]
    assert (collective["kind"], collective["count"], collective["bytes"]) == ("all-reduce", 1, 640)
    assert collective["duration_s"] == pytest.approx(350e-6)
    assert collective["exposed_s"] == pytest.approx(200e-6)


def test_without_shapes_a_bucket_is_a_tensor(tmp_path):
    recording = Recording(shapes=False)
    recording.step()
    trace, summary = imported(tmp_path, recording.write(tmp_path / "rank0.json"), "--batch", 4)
    (gradient,) = trace["workers"][0]["gradients"]
    assert (gradient["tensor"], gradient["bytes"]) == ("bucket.0", 640)
    assert gradient["ready_s"] == pytest.approx(400e-6)
    assert any("bucket" in note for note in summary["notes"])


def test_without_any_size_the_error_says_how_to_record(tmp_path):
    recording = Recording(shapes=False)
    recording.step(known=False)
    path = recording.write(tmp_path / "rank0.json")
    assert "record_shapes=True" in refused(tmp_path, path, "--batch", 4)


def test_ranks_become_workers(tmp_path):
    paths = []
    for rank in range(2):
        recording = Recording()
        recording.step(at=10_000 * rank)
        paths.append(recording.write(tmp_path / f"rank{rank}.json"))
    trace, summary = imported(tmp_path, *paths)
    assert len(trace["workers"]) == summary["ranks"] == 2
    assert trace["workers"][0] == trace["workers"][1]


def test_a_real_trace_of_ddp_over_gloo(tmp_path):
    trace, summary = imported(tmp_path, REAL, "--name", "two blocks")
    worker = trace["workers"][0]
    layers = [layer["layer"] for layer in worker["forward"]]
    assert layers[:3] == ["Embedding_0", "Sequential_0.Block_0.LayerNorm_0", "Sequential_0.Block_0.Linear_0"]
    assert layers[-2:] == ["Linear_4", "(loss)"]
    # 50 x 64 for the embedding and the head, two blocks of 64 x 128 x 2 with biases and norms.
    elements = 2 * 50 * 64 + 50 + 2 * (2 * 64 * 128 + 128 + 64 + 2 * 64)
    assert summary["gradient_bytes"] == 4 * elements
    assert all(len(layer["tensors"]) == (1 if "Embedding" in layer["layer"] else 2) for layer in worker["forward"][:-1])
    (collective,) = summary["collectives"]
    assert (collective["kind"], collective["count"], collective["bytes"]) == ("all-reduce", 3, 4 * elements)
    # The step took 97 ms with waiting and recording; its computation is a tenth of that.
    assert collective["exposed_s"] > summary["backward_s"]
    assert summary["backward_s"] < 5e-3


def test_gradient_accumulation_is_a_layer(tmp_path):
    recording = Recording()
    recording.step()
    # The same again before it, as the first of two passes of one step.
    recording.linear(-300, 3, -250, [[4, 8], [8, 16]])
    recording.linear(-290, 4, -150, [[4, 16], [16, 2]])
    recording.backward(-280, 4, -50, [[32]])
    recording.backward(-260, 3, -20, [[128]])
    step = next(event for event in recording.events if event["name"] == "ProfilerStep#3")
    step["ts"], step["dur"] = -400, 1400
    trace, _ = imported(tmp_path, recording.write(tmp_path / "rank0.json"))
    layers = {layer["layer"]: layer["duration_s"] for layer in trace["workers"][0]["forward"]}
    assert layers["(accumulation)"] == pytest.approx(300e-6)
    assert trace["batch"] == 8


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "is not JSON"),
        (b'{"traceEvents": [', "a whole file"),
        (b"[1, 2]", "no complete events"),
        (b'{"traceEvents": {}}', 'no list "traceEvents"'),
        (b'{"format": "paceline-trace", "traceEvents": []}', "already a Paceline trace"),
        (b'{"traceEvents": [{"ph": "X", "cat": "kernel", "name": "k", "ts": "soon"}]}', "traceEvents[0].ts"),
        (
            b'{"traceEvents": [{"ph": "X", "cat": "kernel", "name": "k", "ts": 1, "dur": -2}]}',
            "dur: must be at least 0, not -2",
        ),
        (b'{"traceEvents": [{"ph": "X", "cat": "kernel", "name": "k", "ts": 1, "dur": 2}]}', "ProfilerStep#N"),
        (gzip.compress(b'{"traceEvents": []}', mtime=0)[:-9], "gzip"),
        (
            b'{"traceEvents": [{"ph": "X", "cat": "kernel", "ts": 1%s}]}' % (b"0" * 400),
            "traceEvents[0].ts: must be microseconds, not 1000000000000000000000000000000000000000",
        ),
        (b'{"traceEvents": [{"ph": "X", "cat": "kernel", "ts": 1%s}]}' % (b"0" * 6000), "thousands of digits"),
    ],
)
def test_bad_files(tmp_path, content, words):
    path = tmp_path / "trace.json"
    path.write_bytes(content)
    message = refused(tmp_path, path)
    assert words in message
    assert "trace.json" in message


def test_a_step_without_backward(tmp_path):
    recording = Recording()
    recording.add("ProfilerStep#0", "user_annotation", 0, 100)
    recording.operator("aten::linear", 5, 10)
    assert "no step computed a gradient" in refused(tmp_path, recording.write(tmp_path / "eval.json"))


FIRST_NAMES = {
    "cpu_op": "Operator",
    "user_annotation": "Operator",
    "kernel": "Kernel",
    "cuda_runtime": "Runtime",
    "External id": "external id",
    "Input Dims": "Input dims",
}


@pytest.mark.parametrize("evaluated", [True, False])
def test_the_format_of_torch_1_8(tmp_path, evaluated):
    recording = Recording()
    for at in (0, 2000):
        recording.step(at)
    now, _ = imported(tmp_path, recording.write(tmp_path / "rank0.json"))
    prefix = "autograd::engine::evaluate_function: "
    events = []
    for event in recording.events:
        args = {FIRST_NAMES.get(key, key): value for key, value in event["args"].items()}
        on_gpu = event["cat"] == "kernel"
        event |= {
            "tid": f"stream {event['tid']}" if on_gpu else str(event["tid"]),
            "ts": str(event["ts"]),
            "args": args,
        }
        event["cat"] = FIRST_NAMES[event["cat"]]
        if not evaluated:
            if event["name"] == f"{prefix}torch::autograd::AccumulateGrad":
                continue
            event["name"] = event["name"].removeprefix(prefix).replace("Backward0", "Backward")
        events.append(event)
    recording.events = events
    then, _ = imported(tmp_path, recording.write(tmp_path / "rank0.json"))
    assert then["workers"] == now["workers"]


def test_what_the_format_of_torch_1_8_lacks(tmp_path):
    recording = Recording()
    recording.add("ProfilerStep#5", "Operator", 0, 1000)
    recording.add("aten::linear", "Operator", 10, 100, **{"Input dims": [[8, 4]]})
    recording.add("Optimizer.step#SGD.step", "Operator", 800, 100)
    message = refused(tmp_path, recording.write(tmp_path / "old.json"))
    assert "no step computed a gradient (1 found)" in message
    assert "older format of torch 1.8" in message


@pytest.mark.parametrize(
    ("orphans", "says"),
    [
        ((0, 50), "50 kernels in 1 of 2 steps without"),
        ((1, 0, 0), "1 kernel in 1 of 3 steps without"),
        ((3, 3), "3 kernels per step without"),
        ((2, 5), "2 to 5 kernels per step without"),
        ((2, 0, 5), "2 to 5 kernels in 2 of 3 steps without"),
        ((0, 0), None),
    ],
)
def test_what_is_said_of_steps_holds_for_each(tmp_path, orphans, says):
    recording = Recording()
    for index, number in enumerate(orphans):
        recording.step(2000 * index)
        for kernel in range(number):
            recording.add(
                "stray", "kernel", 2000 * index + 100 + kernel, 1, 7, correlation=90000 + 100 * index + kernel
            )
    _, summary = imported(tmp_path, recording.write(tmp_path / "rank0.json"))
    notes = " ".join(summary["notes"])
    assert says in notes if says else "without the call" not in notes


def test_batches_that_differ(tmp_path):
    recording = Recording()
    for index in range(3):
        recording.step(2000 * index)
    for event in recording.events:
        if event["ts"] >= 4000 and event["name"] == "aten::linear":
            event["args"]["Input Dims"][0][0] = 3
    trace, summary = imported(tmp_path, recording.write(tmp_path / "rank0.json"))
    assert trace["batch"] == 4
    assert "in 2 of 3 steps" in " ".join(summary["notes"])


def test_missing_file(tmp_path):
    assert "no such file" in refused(tmp_path, tmp_path / "none.json")
    assert "is a folder" in refused(tmp_path, tmp_path)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "all-reduce"),
        ("ncclKernel_AllGather_RING_LL_Sum_int8_t(ncclDevComm*, unsigned long, ncclWork*)", "all-gather"),
        ("ncclDevKernel_ReduceScatter_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "reduce-scatter"),
        ("ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)", "send-receive"),
        ("ncclDevKernel_Broadcast_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "broadcast"),
        ("ncclSymkDevKernel_AllReduce_RSxLD_AGxST_sum_f32", "all-reduce"),
    ],
)
def test_names_of_nccls_kernels(name, kind):
    event = Event(name, "kernel", None, 0.0, 1.0, {})
    assert is_kernel(event)
    assert describe(event).kind == kind


def test_names_of_collectives():
    names = ("_allgather_base", "allreduce_coalesced", "_reduce_scatter_base", "gloo:all_reduce")
    assert [kind_of(name) for name in names] == ["all-gather", "all-reduce", "reduce-scatter", "all-reduce"]
    assert not is_kernel(Event("void cutlass::Kernel<sm80>", "kernel", None, 0.0, 1.0, {}))


def test_intervals_and_the_clock():
    assert union([(3, 5), (0, 1), (4, 8), (1, 2)]) == [(0, 2), (3, 8)]
    assert difference([(0, 10)], [(2, 3), (9, 12)]) == [(0, 2), (3, 9)]
    assert intersection([(0, 4), (6, 9)], [(3, 7)]) == [(3, 4), (6, 7)]
    clock = Clock([(2, 3), (9, 12)])
    assert [clock(at) for at in (0, 2, 2.5, 3, 9, 10, 12, 13)] == [0, 2, 2, 2, 8, 8, 8, 9]
