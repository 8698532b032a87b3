"""Clocks under power limits: closed forms, monotonicity, what boards were measured to reach, and the settings."""

import json
from dataclasses import replace

import cli
import paceline
import pytest
from hypothesis import given
from hypothesis import strategies as st
from paceline._internal import units
from paceline.catalog.gpus import all_hardware, find_hardware, read_hardware
from paceline.errors import InvalidArgumentError
from paceline.operators import attention
from paceline.operators.machine import Machine, constant
from paceline.operators.operator import Operator, contiguous
from paceline.operators.power import cores_clock, limited, product_clock
from paceline.operators.products import Product, product_s

STATIC, FLOOR, ISSUE = constant("power.static"), constant("power.floor"), constant("product.issue")


def needed_w(gpu):
    """Return the watts that products need at the stated clock, from the clock under a limit above the floor."""
    clock = product_clock(gpu)
    assert FLOOR < clock < 1
    return gpu.limit_w / (STATIC + (1 - STATIC) * clock**3)


@pytest.mark.parametrize("clock", [0.9, 0.75, 0.6])
def test_dynamic_power_grows_with_the_cube_of_the_clock(clock):
    needed = needed_w(find_hardware("h200"))
    h200 = replace(find_hardware("h200"), power_w=needed)
    under = limited(h200, needed * (STATIC + (1 - STATIC) * clock**3))
    assert product_clock(under) == pytest.approx(clock)
    assert Machine(under).product_rate("bfloat16") == pytest.approx(ISSUE * clock * h200.peak("bf16"))


def test_below_the_voltage_floor_it_grows_with_the_clock():
    h200, needed = find_hardware("h200"), needed_w(find_hardware("h200"))
    clocks = [product_clock(limited(h200, needed * (STATIC + (1 - STATIC) * part))) for part in (0.04, 0.08)]
    assert clocks[1] == pytest.approx(2 * clocks[0]) == pytest.approx(0.08 / FLOOR**2)
    joint = [product_clock(limited(h200, needed * (STATIC + (1 - STATIC) * FLOOR**3) * by)) for by in (0.9999, 1.0001)]
    assert joint == pytest.approx([FLOOR, FLOOR], rel=1e-3)


GPUS = [gpu for gpu in all_hardware() if gpu.architecture not in ("maxwell", "pascal")]


@given(st.sampled_from(GPUS), st.floats(0.7, 1), st.floats(0.7, 1))
def test_a_lower_limit_is_never_faster(gpu, one, other):
    low, high = (limited(gpu, share * gpu.power_w) for share in sorted((one, other)))
    slow, fast = Machine(low), Machine(high)
    assert product_clock(low) <= product_clock(high)
    for dtype in ("bfloat16", "float16", "float32"):
        assert slow.product_rate(dtype) <= fast.product_rate(dtype)
    assert slow.attention_rate("flash", "forward", 64) <= fast.attention_rate("flash", "forward", 64)
    assert (slow.lane_rate, slow.depthwise_rate) <= (fast.lane_rate, fast.depthwise_rate)
    assert (slow.plain_rate, slow.feed_rate) == (fast.plain_rate, fast.feed_rate)


@pytest.mark.parametrize(("gpu", "watts"), [("h20", 250), ("rtx-4090", 430), ("a10g", 260)])
def test_a_limit_above_what_products_need_changes_no_product(gpu, watts):
    whole, under = (Machine(one) for one in (find_hardware(gpu), limited(find_hardware(gpu), watts)))
    assert whole.product_rate("bfloat16") == under.product_rate("bfloat16")
    assert whole.attention_rate("flash", "backward", 128) == under.attention_rate("flash", "backward", 128)


@pytest.mark.parametrize(
    ("gpu", "watts", "teraflops", "near"),
    [
        # Sustained squares: zzc0721/torch-performance-test-data, issues 77, 95 and 112.
        ("h100-pcie", 350, 493, 0.05),
        ("h20", 400, 142, 0.05),
        # Best of five sizes in 30 repetitions, on smaller boards a little above what is sustained: its database.md.
        ("rtx-a6000", 300, 123, 0.1),
        ("rtx-4090", 450, 166, 0.05),
        ("rtx-3090", 350, 76, 0.05),
        ("a100-80gb", 400, 264, 0.05),
        # cuBLAS at 500 W: facebookexperimental/triton, pull request 2023.
        ("gb300", 500, 617, 0.15),
        ("gb300", 1400, 1890, 0.15),
        # 100 products of 4096: forums.developer.nvidia.com, t/264462.
        ("t4", 70, 24, 0.15),
    ],
)
def test_boards_reach_what_was_measured(gpu, watts, teraflops, near):
    hardware = limited(find_hardware(gpu), watts)
    dtype = "bfloat16" if "bf16" in hardware.peak_flops else "float16"
    assert Machine(hardware).product_rate(dtype) / 1e12 == pytest.approx(teraflops, rel=near)


@pytest.mark.parametrize(
    ("gpu", "teraflops"),
    [("rtx-4090", 55), ("rtx-3090", 24.8), ("rtx-a6000", 23.9), ("a100-80gb", 19.1), ("b200", 66.2)],
)
def test_products_on_cuda_cores_reach_what_was_measured(gpu, teraflops):
    """zzc0721/torch-performance-test-data, database.md, the best of five sizes in FP32."""
    assert Machine(find_hardware(gpu)).product_rate("float32") / 1e12 == pytest.approx(teraflops, rel=0.15)


def test_products_of_a_3090_fall_with_the_limit_as_measured():
    """Prompt tokens per second at limits of 180 to 280 W, of those at 300 W (noonghunna/club-3090, issue 104)."""
    measured = {180: 1273.90, 200: 1442.17, 225: 1542, 250: 1596.81, 280: 1640.95, 300: 1642.94}
    whole = find_hardware("rtx-3090")
    rates = {watts: Machine(limited(whole, watts)).product_rate("bfloat16") for watts in measured}
    for watts, tokens in measured.items():
        assert rates[watts] / rates[300] == pytest.approx(tokens / measured[300], rel=0.08)


@pytest.mark.parametrize(
    ("batch", "m", "n", "k", "teraflops"),
    [
        (4, 4096, 4096, 4096, 1691),
        (1, 4096, 4096, 4096, 1416),
        (4, 2048, 2048, 2048, 1276),
        (4, 1024, 1024, 4096, 1186),
        (1, 4096, 4096, 1024, 1044),
        (1, 2048, 1024, 4096, 962),
        (1, 2048, 2048, 2048, 959),
        (1, 512, 4096, 4096, 941),
        (1, 1024, 1024, 1024, 267),
    ],
)
def test_products_of_a_b200_take_what_was_measured(batch, m, n, k, teraflops):
    """Single products in XLA's table for sm_100 (matmul_interpolator_data.h, Apache-2.0), whose clocks power spares."""
    product = Product(batch, m, n, k, "bfloat16", 2 * batch * (m * k + k * n + m * n))
    rate = product.flops / product_s(Machine(find_hardware("b200")), product)
    assert rate / 1e12 == pytest.approx(teraflops, rel=0.16)


@pytest.mark.parametrize(
    ("tokens", "causal", "forward_ms", "backward_ms"),
    [
        (32768, False, 19.759, 58.606),
        (8192, False, 1.286, 3.901),
        (8192, True, 0.688, 2.097),
        (4096, True, 0.206, 0.607),
    ],
)
def test_attention_on_a_gb200_takes_what_was_measured(tokens, causal, forward_ms, backward_ms):
    """CuDNN 9.19, 64 heads of 128: NVIDIA/cudnn-frontend, benchmark/sdpa_benchmark_training, gb200_919_only_cudnn."""
    query, key = (contiguous((1, heads, tokens, 128), "bfloat16") for heads in (64, 8))
    machine = Machine(find_hardware("gb200"))
    name = "_scaled_dot_product_cudnn_attention"
    forward = Operator(name, (query, key, key), (query,), {"is_causal": causal})
    backward = Operator(f"{name}_backward", (query, query, key, key), (query, key, key), {"is_causal": causal})
    for operator, measured in ((forward, forward_ms), (backward, backward_ms)):
        assert sum(attention.kernels(operator, machine)) * 1e3 == pytest.approx(measured, rel=0.12)


def test_a_board_of_unknown_power_has_the_clock_of_its_architecture(tmp_path):
    own = replace(find_hardware("h100"), power_w=None, peak_flops={"bf16": 5e14})
    assert product_clock(own) == product_clock(find_hardware("h100"))
    assert cores_clock(own) == 1
    with pytest.raises(InvalidArgumentError, match="is not known") as raised:
        limited(own, 500)
    assert raised.value.setting == "power_limit"


def test_a_file_of_absurd_watts_is_slow_and_no_crash():
    for power, limit in ((1, None), (700, 1)):
        machine = Machine(replace(find_hardware("h100"), power_w=power, power_limit_w=limit))
        assert 0 < machine.product_rate("bfloat16") < machine.half_peak / 5
        assert machine.lane_rate > 0


@pytest.mark.parametrize(
    ("watts", "problem", "remedy"),
    [(701, "more than H100 SXM5 80 GB may draw, 700 W", "power_limit='700W'"), (100, "no clock", "power_limit='350W'")],
)
def test_limits_that_no_board_takes_are_errors(watts, problem, remedy):
    with pytest.raises(InvalidArgumentError, match=problem) as raised:
        limited(find_hardware("h100"), watts)
    assert raised.value.remedy.startswith(remedy)


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"power_w": 0}, "power_w"),
        ({"power_w": 700, "power_limit_w": 800}, "power_limit_w"),
        ({"power_w": None, "power_limit_w": 500}, "power_limit_w"),
        ({"boost_hz": 1e9}, "boost_hz"),
        ({"architecture": ["hopper"]}, "architecture"),
        ({"link": {}}, "link"),
    ],
)
def test_device_files_with_wrong_powers_are_refused(tmp_path, fields, problem):
    document = find_hardware("h100").document() | fields
    (tmp_path / "own.json").write_text(json.dumps({key: it for key, it in document.items() if it is not None}))
    with pytest.raises(InvalidArgumentError, match=f"own.json: {problem}"):
        read_hardware(tmp_path / "own.json")


def forecast(watts=None, gpu="h100", **options):
    given = {"gpu": gpu, "workers": 8, "strategy": "native", "sharding": "zero3", "power_limit": watts, **options}
    return paceline.simulate("llama-3-8b", **given)


def test_a_limit_slows_products_and_not_the_optimizer():
    whole, under = forecast(), forecast("500W")
    assert 1.05 < under.forward_s / whole.forward_s < 1.2
    assert under.optimizer_s == whole.optimizer_s
    assert "H100 SXM5 80 GB limited to 500 W" in under.assumed
    named = paceline.simulate("llama-3-8b@h100:power_limit=0.5kW", workers=8, strategy="native", sharding="zero3")
    assert named.iteration_s == under.iteration_s
    assert forecast("700W").iteration_s == whole.iteration_s


def test_commands_take_a_power_limit():
    words = ("llama-3-8b", "--gpu", "h100", "--power-limit", "500W")
    assert "limited to 500 W" in cli.said("simulate", *words, "--gpus", 8)
    assert "limited to 500 W" in cli.said("list", "models", *words)
    advised = cli.said("advise", *words, "--gpus", 8, "--batch", 1)
    assert "limited to 500 W" in advised
    assert "--power-limit 500W" in advised
    assert json.loads(cli.output("list", "models", *words, "--json"))["on_gpu"]["power_limit_w"] == 500


def test_a_limit_without_effect_is_said():
    words = ("llama-3-8b", "--gpu", "h20", "--gpus", 8, "--power-limit")
    assert "A power limit of 300 W has no effect on products" in cli.said("simulate", *words, "300W")
    assert "has no effect" not in cli.said("simulate", *words, "150W")


def test_several_limits_are_a_range(tmp_path):
    words = ("llama-3-8b", "--gpu", "b200", "--gpus", 8, "--sharding", "zero3", "--strategy", "native", "--power-limit")
    text = cli.output("simulate", *words, "750W,1kW")
    header, rows = cli.table(text)
    assert header.startswith("limit W strategy")
    assert [row.split()[0] for row in rows] == ["750", "1000"]
    assert not [note for note in cli.notes(text) if "no effect" in note]
    slow, fast = json.loads(cli.call("simulate", *words, "750W,1kW", "--json").stdout)
    assert (slow["power_limit_w"], fast["power_limit_w"]) == (750, 1000)
    assert slow["iteration_s"] > fast["iteration_s"]
    swept = paceline.sweep("llama-3-8b", gpu="b200", workers=8, strategy="native", power_limit=["750W", "1kW"])
    assert [result.power_limit_w for result in swept] == [750, 1000]
    cli.output("simulate", *words, "600W,750W,1kW", "--plot", tmp_path / "limits.svg")
    assert "power limit (W)" in (tmp_path / "limits.svg").read_text()


@pytest.mark.parametrize(
    ("words", "error", "remedy"),
    [
        (("llama-3-8b", "--gpu", "h100", "--power-limit", "500"), "is not a power with its unit", "--power-limit 500W"),
        (("llama-3-8b", "--gpu", "h100", "--power-limit", "1kW"), "1000 W is more than", "--power-limit 700W"),
        (("llama-3-8b@h100:power_limit=x",), "is not a power with its unit", "power_limit=500W"),
        (("resnet-50", "--power-limit", "500W"), "--power-limit: needs a model", "drop --power-limit"),
    ],
)
def test_wrong_limits_are_errors_with_a_remedy(words, error, remedy):
    text = cli.said("simulate", *words, "--gpus", 8, code=2)
    assert error in text
    assert f"try: {remedy}" in text


@pytest.mark.parametrize(("text", "watts"), [("500W", 500), ("500 W", 500), ("0.5kW", 500), ("1.25 kW", 1250)])
def test_watts_have_a_unit(text, watts):
    assert units.watts(text) == watts


@pytest.mark.parametrize("text", ["500", "W", "-5W", "1e3W", "９W", "500w", "5000000W", "500W "])
def test_other_texts_are_no_watts(text):
    assert units.watts(text) is None


@pytest.mark.parametrize(("number", "remedy"), [(500, "'500W'"), (500.0, "'500W'"), (float("nan"), "'500W'")])
def test_watts_without_a_unit_say_so(number, remedy):
    with pytest.raises(InvalidArgumentError, match="is not a power with its unit") as raised:
        paceline.simulate("gpt2-small", workers=1, gpu="h100", power_limit=number)
    assert raised.value.remedy == f"power_limit={remedy}"


def test_record_takes_a_limit_with_a_gpu_only(tmp_path):
    script = ("-o", tmp_path / "T.json", "--", "python", "train.py")
    assert "--power-limit needs --gpu" in cli.said("record", "--power-limit", "300W", *script, code=2)
    text = cli.said("record", "--gpu", "t4", "--power-limit", "300W", *script, code=2)
    assert "--power-limit: 300 W is more than T4 16 GB may draw, 70 W" in text
