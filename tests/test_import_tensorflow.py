"""`paceline import tensorflow`: timelines and profiles that are written here, without TensorFlow."""

import gzip
import json
import random
import struct
from dataclasses import replace
from pathlib import Path

import paceline
import pytest
from click.testing import CliRunner
from paceline.cli.main import main
from paceline.errors import InvalidArgumentError
from paceline.interop import xplane_file
from paceline.interop.tensorflow import import_tensorflow
from paceline.interop.tensorflow_file import Operation, Recording, _task
from paceline.interop.tensorflow_step import workers
from paceline.interop.xplane_file import read_xplane

# What a timeline of a worker and a server has, in microseconds: name, kind, start, duration, inputs, bytes.
WORKER = [
    ("Const", "gradients/Reshape_grad/Shape", 0, 1, [], None),
    ("RecvTensor", "RecvTensor", 0, 90, [], None),
    ("Conv2D", "conv1/Conv2D", 100, 300, ["_recv_x_0", "conv1/weights/read_S5"], None),
    ("BiasAdd", "conv1/BiasAdd", 400, 100, ["conv1/Conv2D", "conv1/biases/read_S7"], None),
    ("MatMul", "fc/MatMul", 500, 190, ["conv1/BiasAdd", "fc/weights/read/_9"], None),
    ("Mean", "loss", 700, 50, ["fc/MatMul"], None),
    ("Mul", "gradients/loss_grad/mul", 750, 50, ["loss"], None),
    ("MatMul", "gradients/fc/MatMul_grad/MatMul", 800, 100, ["gradients/loss_grad/mul"], 999),
    ("MatMul", "gradients/fc/MatMul_grad/MatMul_1", 900, 100, ["gradients/loss_grad/mul"], 4000),
    ("BiasAddGrad", "gradients/conv1/BiasAdd_grad/BiasAddGrad", 1000, 50, ["gradients/fc/MatMul_grad/MatMul"], 40),
    ("Conv2DBackpropFilter", "gradients/conv1/Conv2D_grad/F", 1050, 450, ["gradients/fc/MatMul_grad/MatMul"], 400),
]
SERVER = [
    ("VariableV2", "conv1/weights", 0, 1, [], None),
    ("Identity", "conv1/weights/read", 2, 1, ["conv1/weights"], None),
    *(
        (
            "ApplyMomentum",
            f"Momentum/update_{name}/ApplyMomentum",
            at,
            30,
            [name, f"{name}/Momentum", "Momentum/rate_S3", f"{gradient}_S4"],
            None,
        )
        for name, gradient, at in [
            ("fc/weights", "gradients/fc/MatMul_grad/MatMul_1", 1100),
            ("conv1/biases", "gradients/conv1/BiasAdd_grad/BiasAddGrad", 1200),
            ("conv1/weights", "gradients/conv1/Conv2D_grad/F", 1600),
        ]
    ),
]


def timeline(tasks, memory=True):
    events = []
    for pid, (task, rows) in enumerate(tasks.items()):
        name = f"{task}/replica:0/task:0/device:CPU:0 Compute" if task else "/device:CPU:0 Compute"
        if "/device" in task:
            name = f"{task} Compute"
        events.append({"ph": "M", "name": "process_name", "pid": pid, "args": {"name": name}})
        for kind, name, start, duration, inputs, size in rows:
            args = {"name": name, "op": kind, **{f"input{i}": one for i, one in enumerate(inputs)}}
            events.append({"ph": "X", "cat": "Op", "name": kind, "pid": pid, "tid": 0, "ts": start, "dur": duration})
            events[-1]["args"] = args
            if memory and size is not None:
                text = f"dtype: DT_FLOAT\nshape {{\n dim {{\n size: {size // 4}\n }}\n}}\nallocation_description {{}}"
                snapshot = {"snapshot": {"tensor_description": text}}
                events.append({"ph": "O", "cat": "Tensor", "name": name, "pid": pid, "ts": start, "args": snapshot})
    return {"traceEvents": events}


BOTH = {"/job:worker": WORKER, "/job:ps": SERVER}
SIZES = {"conv1/weights": 400, "conv1/biases": 40, "fc/weights": 4000}


@pytest.fixture
def written(tmp_path):
    def write(content, name="step.json"):
        path = tmp_path / name
        data = json.dumps(content).encode() if isinstance(content, dict) else content
        path.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
        return path

    return write


def worker(trace):
    document = json.loads(trace.to_json())
    (one,) = document["workers"]
    return one


def seconds(entries, name, value):
    return {one[name]: pytest.approx(one[value] * 1e6, abs=0.01) for one in entries}


@pytest.mark.parametrize("name", ["step.json", "step.json.gz"])
def test_a_timeline_of_a_worker_and_a_server(written, name):
    trace, summary = import_tensorflow([written(timeline(BOTH), name)], batch=8)
    one = worker(trace)
    assert seconds(one["forward"], "layer", "duration_s") == {"conv1": 400, "fc": 190, "(loss)": 60}
    assert [layer.get("tensors") for layer in one["forward"]] == [
        ["conv1/weights", "conv1/biases"],
        ["fc/weights"],
        None,
    ]
    # When each is ready to be sent, since the backward pass began at 750.
    assert seconds(one["gradients"], "tensor", "ready_s") == {
        "fc/weights": 250,
        "conv1/biases": 300,
        "conv1/weights": 750,
    }
    assert {each["tensor"]: each["bytes"] for each in one["gradients"]} == SIZES
    assert one["backward_s"] == pytest.approx(750e-6)
    assert one["optimizer_s"] == pytest.approx(90e-6)  # The server's, without the network.
    assert (summary.name, summary.batch, summary.distribution) == (
        "step",
        8,
        ("conv1/weights", "conv1/biases", "fc/weights"),
    )


def test_the_order_of_distribution_is_that_of_the_first_operation_that_reads(written):
    swapped = {"conv1/Conv2D": 400, "conv1/BiasAdd": 100, "fc/MatMul": 90}
    rows = [(kind, name, swapped.get(name, start), *rest) for kind, name, start, *rest in WORKER]
    trace, summary = import_tensorflow([written(timeline({**BOTH, "/job:worker": rows}))], batch=8)
    assert summary.distribution == ("fc/weights", "conv1/biases", "conv1/weights")
    assert [entry.tensor for entry in trace.distribution] == list(summary.distribution)
    assert paceline.simulate(trace, workers=2, strategy="ps", bandwidth="1Gbps").iteration_s > 0


def test_updates_on_the_worker_itself_follow_its_last_gradient(written):
    local = [(kind, name, start, duration, [one.replace("_S4", "") for one in inputs], size)
             for kind, name, start, duration, inputs, size in SERVER]  # fmt: skip
    trace, _ = import_tensorflow([written(timeline({"": [*WORKER, *local]}))], batch=8)
    assert worker(trace)["optimizer_s"] == pytest.approx(130e-6)  # From 1500 to 1630.


def test_a_timeline_of_a_gpu_has_the_times_of_its_kernels(written):
    local = [
        (kind, name, start, duration, [one.replace("_S4", "") for one in inputs], size)
        for kind, name, start, duration, inputs, size in SERVER
    ]
    rows = [*WORKER, *local]
    # Optimizers of TensorFlow 1 take gradients through identities, for which nothing runs on the GPU.
    named = "gradients/fc/MatMul_grad/tuple/control_dependency_1"
    through = [
        (kind, name, at, time, [named if one == "gradients/fc/MatMul_grad/MatMul_1" else one for one in inputs], size)
        for kind, name, at, time, inputs, size in rows
    ]
    on_cpu, _ = import_tensorflow([written(timeline({"": rows}))], batch=8)
    quick = [(kind, name, number, 1, inputs, size) for number, (kind, name, _, _, inputs, size) in enumerate(through)]
    quick += [("Identity", named, 9, 1, ["gradients/fc/MatMul_grad/MatMul_1"], 4000)]
    kernels = [(kind, name, at + 5000, time, [], None) for kind, name, at, time, _, _ in rows if "read" not in name]
    copies = [("MEMCPYHtoD", "edge_9", 1, 9000, [], None)]
    processes = {"/device:GPU:0": quick, "/device:GPU:0/stream:all": kernels, "/device:GPU:0/memcpy": copies}
    on_gpu, summary = import_tensorflow([written(timeline(processes))], batch=8)
    assert (summary.device, summary.ranks) == ("GPU", 1)
    for part in ("forward", "gradients"):
        assert [
            {key: pytest.approx(value, abs=1e-9) if isinstance(value, float) else value for key, value in one.items()}
            for one in worker(on_cpu)[part]
        ] == worker(on_gpu)[part]
    assert on_gpu.backward_s == pytest.approx(on_cpu.backward_s)
    assert on_gpu.optimizer_s == pytest.approx(on_cpu.optimizer_s)
    both = {f"/job:worker/task:{task}/device:GPU:0": quick for task in (0, 1)}
    with pytest.raises(InvalidArgumentError, match="kernels belong to GPUs of 2 tasks"):
        import_tensorflow([written(timeline({**both, "/device:GPU:0/stream:all": kernels}))], batch=8)


def test_sizes_come_from_the_user_if_the_file_has_none(written):
    bare = written(timeline(BOTH, memory=False))
    with pytest.raises(InvalidArgumentError, match="has no size of fc/weights's gradient"):
        import_tensorflow([bare], batch=8)
    trace, _ = import_tensorflow([bare], batch=8, sizes=written(SIZES, "sizes.json"))
    assert trace.gradient_bytes == sum(SIZES.values())


def test_each_file_and_each_worker_in_it_is_a_worker(written):
    late = [(kind, name, start * 2, duration * 2, *rest) for kind, name, start, duration, *rest in WORKER]
    files = [written(timeline(BOTH), "a.json"), written(timeline({**BOTH, "/job:worker": late}), "b.json")]
    trace, summary = import_tensorflow(files, batch=8)
    assert (trace.worker_count, summary.ranks) == (2, 2)
    other = [row for row in SERVER if "update_fc" not in row[1]]
    files = [files[0], written(timeline({**BOTH, "/job:ps": other}), "c.json")]
    with pytest.raises(InvalidArgumentError, match=r"c\.json: worker 1 has other gradients than worker 0"):
        import_tensorflow(files, batch=8)


def test_workers_have_the_order_of_their_numbers(written):
    tasks = {f"/job:worker/replica:0/task:{task}/x": WORKER for task in ("10", "9" * 5000, "9")}
    trace, _ = import_tensorflow([written(timeline({**tasks, "/job:ps": SERVER}))], batch=8)
    assert trace.worker_count == 3
    words = timeline({f"/job:worker/replica:0/task:{task}/x": [] for task in ("10", "9" * 5000, "9")})["traceEvents"]
    names = [_task(event["args"]["name"]) for event in words]
    gradient = Operation("gradients/a", "Mul", "", 0, 1)
    result = workers(Recording(Path("some"), [[replace(gradient, task=name) for name in names]]))
    assert [task.rpartition(":")[2][:2] for task in result] == ["9", "10", "99"]


@pytest.mark.parametrize(
    ("sizes", "said", "remedy"),
    [
        (
            {**SIZES, "conv1/weight": 400},
            "sizes.json: .*step.json has no gradient of 'conv1/weight'",
            "'conv1/weights'",
        ),
        ({**SIZES, "fc/weights": 10**16}, "sizes.json: must have the bytes", "4096"),
        ({**SIZES, "fc/weights": True}, "sizes.json: must have the bytes", "4096"),
        ({"other": 4}, "no gradient of 'other'", "variables that the step trains"),
    ],
)
def test_sizes_are_those_of_the_gradients(written, sizes, said, remedy):
    with pytest.raises(InvalidArgumentError, match=said) as caught:
        import_tensorflow([written(timeline(BOTH))], batch=8, sizes=written(sizes, "sizes.json"))
    assert remedy in caught.value.remedy


@pytest.mark.parametrize("command", ["tensorflow", "kineto", "chakra", "sends"])
def test_no_recording_is_replaced(written, command):
    recording = written(timeline(BOTH), "only.csv")
    before = recording.read_bytes()
    more = ["--name", "a", "--forward", "1ms", recording] if command == "sends" else []
    batch = [] if command == "kineto" else ["--batch", "8"]
    words = ["import", command, recording, *more, *batch, "-o", recording.parent / "." / recording.name]
    result = CliRunner().invoke(main, [str(word) for word in words])
    assert result.exit_code == 2 and "this file is read, and would be replaced" in " ".join(result.output.split())
    assert recording.read_bytes() == before


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ({}, 'has no list "traceEvents"'),
        ({"traceEvents": []}, "no operations of TensorFlow"),
        ({"traceEvents": [3]}, r"traceEvents\[0\]: must be an object"),
        ({"traceEvents": [{"ph": "X", "args": {"name": "a"}, "ts": "x"}]}, r"traceEvents\[0\].ts: must be micro"),
        ({"traceEvents": [{"ph": "X", "args": {"name": "a"}, "ts": 1, "dur": -1}]}, r"dur: must be at least 0"),
        (timeline({"/job:worker": WORKER[:5]}), "no operation computes a gradient"),
        (timeline({"/job:worker": WORKER}), "no update of a variable"),
        (b"\x00\x01", "is not JSON"),
    ],
)
def test_what_is_no_timeline_is_refused(written, content, said):
    with pytest.raises(InvalidArgumentError, match=said) as caught:
        import_tensorflow([written(content)], batch=8)
    assert caught.value.remedy


# Profiles


def varint(number):
    number &= (1 << 64) - 1
    data = bytearray()
    while number > 127:
        data.append(number & 127 | 128)
        number >>= 7
    return bytes([*data, number])


def field(number, value):
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    if isinstance(value, float):
        return varint(number << 3 | 1) + struct.pack("<d", value)
    data = value.encode() if isinstance(value, str) else value
    return varint(number << 3 | 2) + varint(len(data)) + data


STATS = {"step_num": 7, "correlation_id": 8, "tf_op": 9, "annotation": 10, "kernel_details": 11, "hlo_op": 12}


def plane(name, lines):
    """Lines are events (name, start, duration, statistics) by their names; times are microseconds."""
    events = [event for some in lines.values() for event in some]
    names = {one: key for key, one in enumerate(dict.fromkeys(event[0] for event in events), 1)}
    body = field(2, name)
    for one, key in names.items():
        body += field(4, field(1, key) + field(2, field(1, key) + field(2, one)))
    for one, key in STATS.items():
        body += field(5, field(1, key) + field(2, field(1, key) + field(2, one)))
    for place, (title, some) in enumerate(lines.items()):
        line = field(1, place) + field(2, title) + field(3, 1000)
        for one, start, duration, stats in some:
            event = field(1, names[one]) + field(2, start * 10**6) + field(3, duration * 10**6)
            for key, value in stats.items():
                event += field(4, field(1, STATS[key]) + field(4 if isinstance(value, int) else 5, value))
            line += field(4, event)
        body += field(3, line)
    return field(1, body + field(6, field(1, 9) + field(2, 1.5)))


def xspace(events, step_of=None):
    """Events are (name, start, duration) in microseconds; those of `step_of` have a step's number."""
    rows = [
        (name, start, duration, {"step_num": number} if name == step_of else {})
        for number, (name, start, duration) in enumerate(events)
    ]
    return plane("/host:CPU", {"thread": rows})


GRAPH = [
    ("net/norm/mul:Mul", 3, 1),  # A moving average, which needs no input.
    ("net/one/Cast/ReadVariableOp:ReadVariableOp", 4, 1),
    ("net/one/BiasAdd/ReadVariableOp:ReadVariableOp", 5, 1),
    ("net/norm/Cast/ReadVariableOp:ReadVariableOp", 6, 1),
    ("net/norm/Cast_1/ReadVariableOp:ReadVariableOp", 7, 1),
    ("sgd/Mul/ReadVariableOp:ReadVariableOp", 8, 1),
    ("net/one/BiasAdd:_FusedMatMul", 10, 20),
    ("net/norm/batchnorm/mul:Mul", 30, 10),
    ("loss/Mean:Mean", 40, 5),
    ("gradient_tape/loss/mul:Mul", 45, 5),
    ("gradient_tape/net/norm/batchnorm/mul/Sum:Sum", 50, 10),
    ("gradient_tape/net/one/MatMul/MatMul:MatMul", 60, 10),
    ("gradient_tape/net/one/BiasAdd/BiasAddGrad:BiasAddGrad", 70, 5),
    ("gradient_tape/net/one/MatMul/MatMul_1:MatMul", 75, 15),
    ("sgd/AssignAddVariableOp:AssignAddVariableOp", 90, 10),
    ("ExecutorState::Process", 91, 1),
]
VARIABLES = {"net/one/kernel": 512, "net/one/bias": 32, "net/norm/gamma": 32, "net/norm/beta": 32}
STEPS = [("train", 0, 105), *GRAPH, ("train", 1000, 105), *((name, 1000 + at, time) for name, at, time in GRAPH)]


def test_a_profile(written):
    path = written(xspace(STEPS, "train"), "host.xplane.pb")
    trace, summary = import_tensorflow([path], batch=8, sizes=written(VARIABLES, "sizes.json"))
    one = worker(trace)
    assert summary.steps == 2
    assert seconds(one["forward"], "layer", "duration_s") == {"net/one": 20, "net/norm": 10, "(loss)": 5}
    assert seconds(one["gradients"], "tensor", "ready_s") == {
        "net/norm/gamma": 15,
        "net/norm/beta": 15,
        "net/one/bias": 30,
        "net/one/kernel": 45,
    }
    assert one["optimizer_s"] == pytest.approx(10e-6)
    with pytest.raises(InvalidArgumentError, match="neither names nor sizes"):
        import_tensorflow([path], batch=8)
    with pytest.raises(InvalidArgumentError, match="2 layers read variables"):
        import_tensorflow([path], batch=8, sizes=written({"one": 4}, "sizes.json"))


FUSED = [
    ("net/one/Reshape/ReadVariableOp:ReadVariableOp", 4, 1),
    ("net/one/convolution/ReadVariableOp:ReadVariableOp", 5, 1),
    ("net/two/MatMul/ReadVariableOp:ReadVariableOp", 6, 1),
    ("net/one/BiasAdd:_FusedConv2D", 10, 20),
    ("net/two/MatMul:MatMul", 30, 10),
    ("gradient_tape/net/two/MatMul/MatMul_1:MatMul", 45, 10),
    ("gradient_tape/net/one/convolution/Conv2DBackpropFilter:_Conv2DBackpropFilterWithBias", 60, 10),
    ("sgd/AssignAddVariableOp:AssignAddVariableOp", 90, 10),
]


def test_a_fused_layer_begins_with_an_operation_that_no_gradient_names(written):
    sizes = written({"net/one/kernel": 512, "net/one/bias": 32, "net/two/kernel": 64}, "sizes.json")
    path = written(xspace([("train", 0, 105), *FUSED], "train"), "host.xplane.pb")
    one = worker(import_tensorflow([path], batch=8, sizes=sizes)[0])
    assert seconds(one["forward"], "layer", "duration_s") == {"net/one": 20, "net/two": 10, "(loss)": 5}
    assert seconds(one["gradients"], "tensor", "ready_s") == {
        "net/two/kernel": 10,
        "net/one/kernel": 25,
        "net/one/bias": 25,
    }


def of_a_gpu(events, stat="tf_op", late=700, gpu=0, streams=2):
    """The same training on a GPU: the host launches kernels in 1 us each, and they run long after, on some streams."""
    host, kernels = [], {f"Stream #{number + 13}(Compute)": [] for number in range(streams)}
    for number, (name, start, duration) in enumerate(events):
        if name == "train":
            host.append((name, start, 105, {"step_num": number}))
        elif name.endswith("ReadVariableOp:ReadVariableOp") or "::" in name:
            host.append((name, start, duration, {}))
        else:
            host.append((name, start + 1, 1, {}))
            host.append(("cuLaunchKernel", start + 1, 1, {"correlation_id": number}))
            # Of two kernels of an operator the second ends when the operator does.
            for begin, lasts in [(start, duration // 2), (start + duration // 2, duration - duration // 2)]:
                text = f"outer::{name}#shape=(float[8])#" if stat == "annotation" else name
                stats = {"correlation_id": number, "kernel_details": "regs:32", **({stat: text} if stat else {})}
                line = list(kernels)[number % streams]
                kernels[line].append(("void kernel<float>()", begin + late, lasts, stats))
    derived = {"TensorFlow Ops": [(name, start, 10**4, {}) for name, start, _ in events]}
    return plane("/host:CPU", {"thread": host}) + plane(f"/device:GPU:{gpu}", kernels | derived)


@pytest.mark.parametrize("stat", ["tf_op", "annotation"])
@pytest.mark.parametrize("late", [5, 700, 5000])
def test_a_profile_of_a_gpu_has_the_times_of_its_kernels(written, stat, late):
    sizes = written(VARIABLES, "sizes.json")
    on_cpu, _ = import_tensorflow([written(xspace(STEPS, "train"), "cpu.xplane.pb")], batch=8, sizes=sizes)
    path = written(of_a_gpu(STEPS, stat, late), "gpu.xplane.pb")
    on_gpu, summary = import_tensorflow([path], batch=8, sizes=sizes)
    assert (summary.device, summary.steps) == ("GPU", 2)
    assert "times of a GPU's kernels" in summary.notes
    assert seconds(worker(on_gpu)["gradients"], "tensor", "ready_s") == seconds(
        worker(on_cpu)["gradients"], "tensor", "ready_s"
    )
    assert worker(on_gpu)["forward"] == [
        {**layer, "duration_s": pytest.approx(layer["duration_s"], abs=1e-8)} for layer in worker(on_cpu)["forward"]
    ]
    assert on_gpu.backward_s == pytest.approx(on_cpu.backward_s, abs=1e-8)
    assert on_gpu.optimizer_s == pytest.approx(on_cpu.optimizer_s, abs=1e-8)


ON_GPU, GPU = of_a_gpu(STEPS), "gpu.xplane.pb"


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (of_a_gpu(STEPS, "hlo_op"), "XLA compiled what ran on /device:GPU:0"),
        (of_a_gpu(STEPS, None), "the kernels of /device:GPU:0 have no operator"),
        (ON_GPU + of_a_gpu(STEPS, gpu=3), "/device:GPU:0 and /device:GPU:3 trained"),
        (of_a_gpu([row for row in STEPS if "ReadVariableOp" not in row[0]]), "no reads of variables by the host"),
        (ON_GPU.replace(b"correlation_id", b"correlation_xx", 1), "no launch of any kernel of /device:GPU:0"),
        (plane("/device:TPU:0", {"XLA Ops": [("fusion", 1, 1, {})]}) + ON_GPU, "was recorded on a TPU"),
    ],
)
def test_a_gpu_whose_kernels_tell_too_little_is_refused(written, content, said):
    sizes = written(VARIABLES, "sizes.json")
    with pytest.raises(InvalidArgumentError, match=said) as caught:
        import_tensorflow([written(content, GPU)], batch=8, sizes=sizes)
    assert caught.value.remedy


def test_a_gpu_that_ran_nothing_is_no_hindrance(written):
    content = xspace(STEPS, "train") + plane("/device:GPU:0", {"Stream #1(MemcpyH2D)": [("MemcpyH2D", 1, 1, {})]})
    _, summary = import_tensorflow([written(content, GPU)], batch=8, sizes=written(VARIABLES, "sizes.json"))
    assert (summary.device, summary.notes) == ("CPU", ())


def test_files_of_a_gpu_and_of_cpus_are_not_mixed(written):
    files = [written(ON_GPU, GPU), written(xspace(STEPS, "train"), "cpu.xplane.pb")]
    with pytest.raises(InvalidArgumentError, match="some files are of a GPU and others of CPUs"):
        import_tensorflow(files, batch=8, sizes=written(VARIABLES, "sizes.json"))


@pytest.mark.parametrize(
    ("events", "said"),
    [
        ([], "neither steps nor calls"),
        ([("train", 0, 9), ("MatMul", 1, 2)], "no operations of a graph"),
        ([("train", 0, 99), *GRAPH[:9]], "no operation computes a gradient"),
    ],
)
def test_what_is_no_profile_of_training_is_refused(written, events, said):
    path = written(xspace(events, "train"), "host.xplane.pb")
    with pytest.raises(InvalidArgumentError, match=said) as caught:
        import_tensorflow([path], batch=8, sizes=written(VARIABLES, "sizes.json"))
    assert caught.value.remedy


def test_every_beginning_of_a_profile_is_read_or_refused(written):
    whole = xspace(STEPS, "train")
    sizes = written(VARIABLES, "sizes.json")
    accepted = 0
    for end in range(len(whole)):
        path = written(whole[:end], "host.xplane.pb")
        try:
            import_tensorflow([path], batch=8, sizes=sizes)
            accepted += 1
        except InvalidArgumentError as error:
            assert str(path) in str(error) and error.remedy, error
    assert accepted == 0  # A plane is one field, whose length says where it ends.


@pytest.mark.parametrize("whole", [xspace(STEPS, "train"), ON_GPU], ids=["cpu", "gpu"])
def test_changed_profiles_are_read_or_refused(written, whole):
    rng = random.Random(1)
    sizes = written(VARIABLES, "sizes.json")
    for _ in range(250):
        changed = bytearray(whole)
        for _ in range(rng.randint(1, 4)):
            changed[rng.randrange(len(changed))] = rng.randrange(256)
        try:
            import_tensorflow([written(bytes(changed), "host.xplane.pb")], batch=8, sizes=sizes)
        except InvalidArgumentError as error:
            assert error.remedy


def test_every_beginning_of_a_timeline_is_refused(written):
    whole = json.dumps(timeline({"": WORKER[2:5]})).encode()
    for end in range(0, len(whole), 3):
        with pytest.raises(InvalidArgumentError):
            import_tensorflow([written(whole[:end])], batch=8)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"\x0a\xff\xff\xff\xff\x0f", "the file is damaged or ends too early"),
        (b"\x0a\xff", "the file is damaged or ends too early"),
        (b"\xff" * 11, "the file is damaged"),
        (b"\x00", "the file is damaged"),
        (b"\x0b", "the file is damaged"),
        (b"\x08\x01", "no planes"),
        (b"", "no planes"),
        (field(1, b"\x0a"), "a plane is damaged"),
        (field(1, field(3, b"\x0a")), "a line is damaged"),
        (field(1, field(3, field(4, b"\x09"))), "an event is damaged"),
        (field(1, field(3, field(4, field(3, -1)))), "lasts -1 ps"),
    ],
)
def test_a_damaged_profile_says_where(written, data, said):
    with pytest.raises(InvalidArgumentError, match=said):
        read_xplane(written(data, "host.xplane.pb"))


def test_more_events_than_memory_holds_are_refused(written, monkeypatch):
    monkeypatch.setattr(xplane_file, "_MOST_EVENTS", 100)
    full = field(1, field(3, field(4, field(1, 1)) * 60)) * 2
    with pytest.raises(InvalidArgumentError, match="more than 100 events; profile fewer steps"):
        read_xplane(written(full, "host.xplane.pb"))
    with pytest.raises(InvalidArgumentError, match="more than 100 events are empty"):
        read_xplane(written(field(1, field(3, field(4, b"") * 101)), "host.xplane.pb"))


def test_every_kind_of_statistic_and_names_of_any_bytes(written):
    values = [(2, 1.5), (3, 1 << 63), (4, -2), (5, "text"), (6, b"\x01"), (7, 3)]
    stats = b"".join(field(4, field(1, place) + field(*pair)) for place, pair in enumerate(values, 1))
    names = b"".join(field(5, field(1, key) + field(2, field(2, f"s{key}"))) for key in range(1, 7))
    kinds = field(4, field(1, 9) + field(2, field(2, b"k\xff") + field(5, field(1, 1) + field(2, 9.0))))
    line = field(11, "shown") + field(2, "id") + field(3, 2) + field(4, field(1, 9) + field(2, 5) + field(3, 7) + stats)
    (plane_,) = read_xplane(written(field(1, names + kinds + field(3, line)), "host.xplane.pb"))
    ((event,),) = [one.events for one in plane_.lines]
    assert plane_.lines[0].name == "shown" and event.name == "k\ufffd"
    assert event.stats == {"s1": 1.5, "s2": 1 << 63, "s3": -2, "s4": "text", "s5": b"\x01", "s6": "s3"}
    assert (event.start, event.end) == (pytest.approx(2e-9 + 5e-12), pytest.approx(2e-9 + 12e-12))


def test_the_command(written, tmp_path):
    output = tmp_path / "mine.json"
    words = ["import", "tensorflow", str(written(timeline(BOTH))), "--batch", "8", "-o", str(output)]
    result = CliRunner().invoke(main, words)
    assert result.exit_code == 0, result.output
    said = " ".join(result.output.split())
    assert "4.44 kB of gradients in 3 tensors" in said
    assert "Distribution conv1/weights, conv1/biases, fc/weights" in said
    assert json.loads(output.read_text())["batch"] == 8
    summary = json.loads(CliRunner().invoke(main, [*words, "--json"]).stdout)
    assert summary["gradient_bytes"] == 4440 and summary["distribution"][0] == "conv1/weights"
