"""`paceline calibrate`: device files from measured operators, and what forecasts make of them."""

import json
import math
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import cli
import pytest
import tiers
from hypothesis import given
from hypothesis import strategies as st
from paceline.catalog.calibration import Calibration
from paceline.catalog.gpus import find_hardware, read_hardware
from paceline.errors import InvalidArgumentError
from paceline.operators.kernels import work_of
from paceline.operators.machine import Machine
from paceline.operators.measured import Measured, interpolated
from paceline.operators.operator import SYNCHRONIZE, Operator, Tensor, contiguous
from paceline.operators.queues import OneThread, dispatch_s
from paceline.operators.schedule import Schedule

pytestmark = pytest.mark.timed

ROOT = Path(__file__).parent.parent
PEAK, BANDWIDTH = 1e11, 4e10


def product(m, n, k, dtype="float32"):
    shapes = ((m, k), (k, n), (m, n))
    *inputs, output = (contiguous(shape, dtype) for shape in shapes)
    return Operator("mm", tuple(inputs), (output,))


def relu(size):
    tensor = contiguous((size,), "float32")
    return Operator("relu", (tensor,), (tensor,))


def cpu(*operators, dispatch=None):
    """Return the document of a CPU with these measured operators."""
    calibration = Calibration({"spread": 0.02}, dispatch or {}, operators or ((relu(1024), 1e-6),))
    return {
        "format": "paceline-device",
        "version": 1,
        "name": "mine",
        "title": "A CPU",
        "architecture": "cpu",
        "peak_flops": {"fp32": PEAK},
        "memory_bandwidth": BANDWIDTH,
        "memory_bytes": 16e9,
        "launch_s": 1e-6,
        "multiprocessors": 2,
        "sources": ["a test"],
        "calibration": calibration.document(),
    }


def read(tmp_path, document):
    path = tmp_path / "mine.json"
    path.write_text(json.dumps(document))
    return read_hardware(path)


def test_a_file_is_what_was_measured(tmp_path):
    turned = Tensor((8, 4, 1, 1), "float32", (1, 8, 8, 8))
    attributes = {"groups": 1, "stride": [1, 1], "output_mask": [True, False, False]}
    masked = Operator("convolution_backward", (turned,) * 3, (turned,), attributes, phase="backward")
    document = cpu((product(8, 8, 8), 2e-6), (masked, 3e-6), dispatch={"forward": 1e-6})
    hardware = read(tmp_path, document)
    assert hardware.is_cpu
    assert [seconds for _, seconds in hardware.calibration.operators] == [2e-6, 3e-6]
    assert hardware.calibration.operators[1][0] == masked
    assert hardware.calibration.dispatch_s == {"forward": 1e-6}
    again = read(tmp_path, hardware.document())
    assert again == hardware


WRONG = {
    "calibration": (None, "calibration: is missing, and a CPU has no data sheet"),
    "calibration.operators": ([], "calibration.operators: is empty"),
    "calibration.tensors": ([{"dtype": "float7", "shape": [1]}], "calibration.tensors[0]: is not a tensor"),
    "calibration.dispatch_s": ({"forward": -1}, "calibration.dispatch_s.forward: -1 is not a number of seconds"),
    "calibration.more": (1, "calibration.more: unknown field"),
}


@pytest.mark.parametrize("field", WRONG)
def test_a_wrong_file_names_the_field(tmp_path, field):
    document = cpu()
    value, words = WRONG[field]
    *path, last = field.split(".")
    (document[path[0]] if path else document)[last] = value
    with pytest.raises(InvalidArgumentError) as refused:
        read(tmp_path, document)
    assert words in str(refused.value)
    assert "paceline calibrate" in refused.value.remedy


def test_a_dtype_is_text(tmp_path):
    document = cpu()
    document["calibration"]["tensors"][0]["dtype"] = ["float32"]
    with pytest.raises(InvalidArgumentError, match=r"calibration.tensors\[0\]: is not a tensor"):
        read(tmp_path, document)


@pytest.mark.parametrize(
    "row",
    [
        *({"name": "mm", "inputs": [9]}, {"name": ""}, 3, {"name": "mm", "phase": 1}, {"name": "add", "seconds": 0}),
        {"name": "mm", "seconds": 1e-6},
    ],
)
def test_a_wrong_operator_is_named(tmp_path, row):
    document = cpu()
    document["calibration"]["operators"].append(row)
    with pytest.raises(InvalidArgumentError, match=r"calibration.operators\[1\]"):
        read(tmp_path, document)


def test_an_operator_takes_what_was_measured(tmp_path):
    # Twice the roofline everywhere: so does what lies between and beyond.
    machine = Machine(read(tmp_path, cpu()))
    sizes = (64, 128, 256, 512)
    measured = [(product(m, n, 256), 2 * work_of(product(m, n, 256), machine).seconds) for m in sizes for n in sizes]
    machine = Machine(read(tmp_path, cpu(*measured)))
    for operator, seconds in measured:
        assert work_of(operator, machine).seconds == pytest.approx(seconds, rel=1e-6)
    for m, n, k in ((100, 300, 256), (2048, 2048, 2048)):
        operator = product(m, n, k)
        work = work_of(operator, machine)
        moved = operator.read + operator.written
        assert work.seconds == pytest.approx(2 * (max(work.flops / PEAK, moved / BANDWIDTH) + 1e-6), rel=1e-6)
    # Nothing like it was measured.
    assert work_of(relu(1 << 20), machine).seconds == pytest.approx(8 * 2**20 / BANDWIDTH + 1e-6)


def test_a_gpu_is_corrected_as_well():
    h100 = find_hardware("h100")
    plain = work_of(product(512, 512, 512, "bfloat16"), Machine(h100)).seconds
    measured = tuple((product(m, 512, 512, "bfloat16"), 3 * plain) for m in (512, 513, 514))
    corrected = Machine(replace(h100, calibration=Calibration({}, {}, measured)))
    assert work_of(product(512, 512, 512, "bfloat16"), corrected).seconds == pytest.approx(3 * plain, rel=0.05)


@given(st.lists(st.tuples(st.floats(0, 20), st.floats(0, 20), st.floats(-3, 3)), min_size=1, max_size=40))
def test_interpolation_stays_within_what_was_measured(rows):
    points = [((x, y), value) for x, y, value in rows]
    value = interpolated(points, (7.0, 11.0))
    values = [value for _, value in points]
    assert min(values) - 1e-9 <= value <= max(values) + 1e-9


@given(st.floats(1, 9), st.floats(1, 9))
def test_interpolation_follows_a_slope(x, y):
    points = [((float(a), float(b)), 0.3 * a - 0.1 * b) for a in range(11) for b in range(11)]
    assert interpolated(points, (x, y)) == pytest.approx(0.3 * x - 0.1 * y, abs=0.1)


def test_the_most_special_class_counts():
    tensor = contiguous((1 << 20,), "float32")
    forward = [(replace(relu(size), phase="forward"), "memory", 1.5) for size in (1000, 2000, 4000)]
    other = [(Operator("exp", (tensor,), (tensor,)), "memory", 5.0)] * 3
    measured = Measured([*forward, *other])
    assert measured.ratio(relu(3000), "memory") == pytest.approx(1.5)
    assert 1.5 <= measured.ratio(replace(relu(3000), name="tan"), "memory") <= 5.0
    assert measured.ratio(product(8, 8, 8), "matmul") == 1.0


def test_a_configured_model_takes_what_was_measured(tmp_path):
    """Everything three times as long as by the roofline: so is a step, but for the first file's."""
    import paceline

    def step_s(*operators):
        (tmp_path / "mine.json").write_text(json.dumps(cpu(*operators, dispatch={"forward": 0.0})))
        result = paceline.simulate("gpt2-small", gpu=str(tmp_path / "mine.json"), workers=1, batch=1, seq=64)
        return result.forward_s

    machine = Machine(read(tmp_path, cpu()))
    products = [product(m, 768, 768) for m in (32, 64, 128)]
    three = [(one, 3 * work_of(one, machine).seconds) for one in products]
    assert 1.5 * step_s() < step_s(*three) < 3.1 * step_s()


def test_a_cpu_runs_one_operator_after_the_other(tmp_path):
    thread = OneThread()
    thread.dispatch([1e-3, 2e-3], 1e-6)
    thread.dispatch([], 1e-6, waits=True)
    assert math.isclose(thread.done_s, 3e-3 + 2e-6)
    machine = Machine(read(tmp_path, cpu(dispatch={"forward": 5e-6})))
    schedule = Schedule(machine)
    operators = [relu(1 << 20), Operator(SYNCHRONIZE), relu(1 << 20)]
    schedule.extend(operators)
    alone = work_of(operators[0], machine).seconds
    assert schedule.done_s[-1] == pytest.approx(2 * alone + 15e-6)
    assert dispatch_s(relu(1), machine) == 5e-6


# What needs torch.


@pytest.fixture
def torch():
    return pytest.importorskip("torch")


@pytest.mark.parametrize("kind", tiers.some(["convolutional", "dense", "elementwise", "separate", "transformer"], 5))
def test_programs_are_timed_operator_by_operator(torch, kind):
    from random import Random

    from paceline.calibrate.measure import Measurements, Rates, run_program
    from paceline.calibrate.programs import Setup
    from paceline.calibrate.timing import CpuClock

    steps = run_program(kind, Setup(torch.device("cpu"), Random(1), 1e5), CpuClock(1))
    names = [[operator.name for operator, _ in calls] for calls in steps.timed]
    assert all(one == names[0] for one in names)
    assert {operator.phase for operator, _ in steps.timed[0]} == {"forward", "backward", "update"}
    assert all(seconds >= 0 for calls in steps.timed for _, seconds in calls)
    measurements = Measurements(Rates({"fp32": PEAK}, BANDWIDTH, 1e-6))
    measurements.take(steps)
    timed = measurements.operators()
    assert 0 < len(timed) <= len(names[0])
    assert sum(one.count for one in timed) == len(names) * len(names[0])
    # Values of a step, such as a learning rate, make no other operator.
    attributes = [pair for one in timed for pair in one.operator.attributes.items()]
    assert {name for name, value in attributes if isinstance(value, float)} <= {"dropout_p"}


def test_the_same_seed_gives_the_same_programs(torch):
    from itertools import islice
    from random import Random

    from paceline.calibrate.measure import Rates, _setups
    from paceline.calibrate.programs import program

    def shapes():
        rates = Rates({"fp32": 1e8}, BANDWIDTH, 1e-6)
        setups = islice(_setups(torch.device("cpu"), Random(7), rates, {"fp32": torch.float32}, 0.01), 7)
        programs = [program(kind, setup) for setup, kind in setups]
        return [[p.shape for group in one.optimizer.param_groups for p in group["params"]] for one in programs]

    assert shapes() == shapes()


class Event:
    """An event of a GPU on which every operator takes 2 ms."""

    now = 0.0

    def __init__(self, **_):
        self.ms = 0.0

    def record(self):
        self.ms = Event.now
        Event.now += 2.0

    def elapsed_time(self, other):
        return other.ms - self.ms


SMI = """#!/bin/sh
case "$*" in
*compute-apps*) echo "{pid}" ;;
*) echo "1980, 1980, 690.5, 700.0, 61, {reasons}" ;;
esac
"""


@pytest.fixture
def gpu(torch, monkeypatch, tmp_path):
    """A GPU that is not there: its events, properties and nvidia-smi."""
    for name, answer in {
        "is_available": True,
        "is_bf16_supported": True,
        "device_count": 1,
        "set_device": None,
        "synchronize": None,
        "_sleep": None,
        "get_device_name": "NVIDIA H200",
        "get_device_capability": (9, 0),
        "get_device_properties": SimpleNamespace(total_memory=10**11, multi_processor_count=100),
    }.items():
        monkeypatch.setattr(torch.cuda, name, lambda *_, _answer=answer: _answer)
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")

    def smi(pid="", reasons="0x4"):
        path = tmp_path / "nvidia-smi"
        path.write_text(SMI.format(pid=pid, reasons=reasons))
        path.chmod(0o755)

    smi()
    return smi


def test_a_gpu_has_its_data_sheet_and_says_whether_it_is_free(gpu, torch, monkeypatch):
    from paceline.calibrate.device import Gpu
    from paceline.calibrate.measure import Rates

    device = Gpu(0)
    rates = Rates({"bf16": 6e14}, 3e12, 3e-6)
    assert device.fields(rates)["memory_bandwidth"] == find_hardware("h200").memory_bandwidth
    assert device.state()["clock_mhz"] == 1980
    assert device.state()["throttled"] == ["power limit"]
    assert not device.busy()
    gpu(pid=1)
    assert "process 1 uses NVIDIA H200" in device.busy()
    gpu(reasons="0x20")
    assert "lower clocks: temperature" in device.busy()
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "AMD Instinct MI999")
    fields = Gpu(0).fields(rates)
    assert (fields["peak_flops"], fields["multiprocessors"]) == ({"bf16": 6e14}, 100)


def test_the_events_of_a_gpu_time_its_operators(gpu, torch, monkeypatch):
    from random import Random

    from paceline.calibrate.measure import Measurements, Rates, run_program
    from paceline.calibrate.programs import Setup
    from paceline.calibrate.timing import CudaClock

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)  # An optimizer would ask the driver.
    steps = run_program("dense", Setup(torch.device("cpu"), Random(1), 1e4), CudaClock())
    assert {round(seconds, 6) for calls in steps.timed for _, seconds in calls} == {2e-3}
    measurements = Measurements(Rates({"bf16": PEAK}, BANDWIDTH, 1e-6))
    measurements.take(steps)
    # The host's time alone, by the wall clock.
    assert all(0 < seconds < 1 for seconds in measurements.dispatch_s.values())


def test_a_busy_processor_is_refused(torch, monkeypatch):
    from paceline.calibrate import device

    monkeypatch.setattr(device, "_others", lambda: 1.5)
    monkeypatch.setattr(device, "_processors", lambda: 2)
    before = torch.get_num_threads()
    try:
        assert "other programs use 1.5 of 2 processors, and operators 2 threads" in device.Cpu(2).busy()
        assert not device.Cpu(1).busy()
    finally:
        torch.set_num_threads(before)


@pytest.mark.process
def test_a_cpu_is_calibrated_and_takes_a_recording(torch, tmp_path):
    """A tiny one: the file is checked, not its times."""
    path = tmp_path / "cpu.json"
    words = ("calibrate", "--device", "cpu", "--threads", "1", "--seconds", "2", "-o", path)
    result = cli.ended(sys.executable, "-m", "paceline", *words, "--json", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    summary = json.loads(result.stdout)
    hardware = read_hardware(path)
    assert len(hardware.calibration.operators) == summary["operators"] > 20
    assert summary["conditions"]["versions"]["torch"] == torch.__version__
    script = (ROOT / "scripts" / "validate_calibration.py", path, "--train", "gpt")
    trace = tmp_path / "trace.json"
    command = ("record", "--gpu", path, "-o", trace, "--json", "--", sys.executable, *script)
    result = cli.ended(sys.executable, "-m", "paceline", *command, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    document = json.loads(trace.read_text())
    assert document["device"] == hardware.title
    assert "as measured there" in document["provenance"]


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_calibration_forecasts_this_machine(torch, tmp_path):
    path = tmp_path / "cpu.json"
    cli.ended(sys.executable, "-m", "paceline", "calibrate", "--device", "cpu", "--threads", "1", "-o", path)
    result = cli.ended(sys.executable, ROOT / "scripts" / "validate_calibration.py", path, "--json", "--rounds", "3")
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (("--device", "tpu"), "must be cpu, cuda or cuda:N, not 'tpu'"),
        (("--seconds", "1e9"), "must be at most 3600 s"),
        (("--device", "cuda:7", "--threads", "2"), "--threads is for the CPU's"),
    ],
)
def test_wrong_options_are_refused(torch, tmp_path, words, error):
    assert error in cli.refused("calibrate", *words, "-o", tmp_path / "mine.json")


def test_a_file_that_no_gpu_option_takes_is_refused_before_it_is_measured(torch, tmp_path):
    assert "--output must end in .json" in cli.refused("calibrate", "--device", "cpu", "-o", tmp_path / "mine.txt")


def test_a_device_that_is_not_there_is_refused(torch, tmp_path, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    result = cli.call("calibrate", "--device", "cuda:7", "-o", tmp_path / "mine.json")
    assert result.exit_code == 77
    assert "no CUDA devices that torch can use, and cuda:7 is not among them" in result.stderr
    assert "try: --device cpu" in result.stderr
