"""What operators take on a GPU: products, attention, passes over memory, fused chains, queues."""

import json
import math
import sys
from dataclasses import replace

import cli
import paceline
import pytest
from hypothesis import given
from hypothesis import strategies as st
from paceline.catalog.gpus import all_hardware, find_hardware
from paceline.operators import attention, convolutions
from paceline.operators.forms import problem_of
from paceline.operators.fused import Fusion
from paceline.operators.kernels import work_of
from paceline.operators.machine import Machine, all_constants, constant
from paceline.operators.memory_bound import instructions
from paceline.operators.operator import SYNCHRONIZE, Operator, Tensor, contiguous
from paceline.operators.products import Product, product_of, product_s
from paceline.operators.queues import Queues, dispatch_s
from paceline.operators.steps import Step, retimed

H200 = Machine(find_hardware("h200"))
sizes = st.integers(1, 8192)


def product(m, n, k, batch=1, **options):
    return Product(batch, m, n, k, "bfloat16", 2 * batch * (m * k + k * n + m * n), **options)


def of(name, *inputs, out=(), **attributes):
    outputs = out if isinstance(out, tuple) else (out,)
    return Operator(name, inputs, outputs, attributes)


def image(*shape, dtype="bfloat16"):
    """Return a tensor in channels_last."""
    _, c, h, w = shape
    return Tensor(shape, dtype, (c * h * w, 1, c * w, c))


def test_tensors_know_their_bytes_and_layout():
    whole = contiguous((4, 8, 16), "float32")
    assert (whole.strides, whole.elements, whole.bytes, whole.innermost) == ((128, 16, 1), 512, 2048, 2)
    row = Tensor((4, 8, 16), "bfloat16", (0, 0, 1))
    assert (row.elements, row.bytes) == (512, 32)
    assert Tensor((0, 3), "bfloat16", (3, 1)).bytes == 0
    turned = Tensor((8, 4), "float32", (1, 8))
    assert turned.innermost == 0
    assert not turned.is_laid_out_as(contiguous((8, 4), "float32"))
    assert Tensor((1, 4), "float32", (99, 1)).is_laid_out_as(contiguous((1, 4), "float32"))


@pytest.mark.parametrize("hardware", all_hardware(), ids=lambda hardware: hardware.name)
def test_every_gpu_reaches_less_than_its_peaks(hardware):
    machine = Machine(hardware)
    large = replace(product(8192, 8192, 8192), dtype="bfloat16" if "bf16" in hardware.peak_flops else "float16")
    seconds = product_s(machine, large)
    assert machine.half_peak * 0.35 < large.flops / seconds < machine.half_peak * hardware.boost_hz / hardware.clock_hz
    plain = of("add", *[contiguous((1 << 26,), "bfloat16")] * 2, out=contiguous((1 << 26,), "bfloat16"))
    rate = (plain.read + plain.written) / work_of(plain, machine).seconds
    assert 0.6 * hardware.memory_bandwidth < rate < hardware.memory_bandwidth


@given(sizes, sizes, sizes)
def test_a_product_takes_at_least_its_flops_and_its_bytes(m, n, k):
    one = product(m, n, k)
    seconds = product_s(H200, one)
    assert seconds >= one.flops / H200.product_rate("bfloat16")
    assert seconds >= one.moved / H200.hardware.memory_bandwidth
    assert product_s(H200, product(m, n, k, batch=3)) >= seconds
    assert product_s(H200, product(m, n, k, alignment=2)) >= product_s(H200, product(m, n, k, alignment=8)) >= seconds


def test_products_come_in_waves_and_deep_ones_are_split():
    tiles = H200.multiprocessors
    full, more = (product_s(H200, product(128 * count, 256, 16384)) for count in (tiles, tiles + 1))
    assert more > full * 1.05
    deep = product(256, 256, 1 << 20)
    alone = deep.flops / (H200.product_rate("bfloat16") / H200.multiprocessors * 4)
    assert product_s(H200, deep) < alone / 4


def test_the_alignment_of_a_product_is_that_of_its_worst_operand():
    left, right = contiguous((8192, 1024), "bfloat16"), Tensor((1024, 50257), "bfloat16", (1, 1024))
    whole = of("mm", left, right, out=contiguous((8192, 50257), "bfloat16"))
    assert product_of(whole).alignment == 2
    assert product_of(of("mm", left, right, out=contiguous((8192, 50304), "bfloat16"))).alignment == 16
    slow, fast = work_of(whole, H200).seconds, work_of(replace(whole, compiled=True), H200).seconds
    assert slow > 2 * fast  # torch.compile fills it up.


def test_experts_are_products_of_their_share_of_the_tokens():
    tokens, weights = contiguous((4096, 1024), "bfloat16"), contiguous((8, 1024, 3584), "bfloat16")
    out = contiguous((4096, 3584), "bfloat16")
    forward = of("_grouped_mm", tokens, weights, out=out)
    back = of("_grouped_mm", Tensor((1024, 4096), "bfloat16", (1, 1024)), out, out=weights)
    for operator in (forward, back):
        work = work_of(operator, H200)
        assert (work.kind, work.flops) == ("matmul", 2 * 4096 * 1024 * 3584)
        assert work.seconds > work.flops / H200.product_rate("bfloat16")


def test_tf32_only_where_it_is_allowed():
    matrix = contiguous((4096, 4096), "float32")
    square = of("mm", matrix, matrix, out=matrix)
    assert work_of(replace(square, tf32=True), H200).seconds < work_of(square, H200).seconds / 4


def heads(length, size, kv=8):
    return [contiguous((2, count, length, size), "bfloat16") for count in (8, kv, kv)]


def attend(name, length=4096, size=128, kv=8, **attributes):
    query, key, value = heads(length, size, kv)
    rest = (query,) if "backward" in name else ()
    return of(name, *rest, query, key, value, out=query, **attributes)


def test_attention_masks_half_and_goes_back_with_five_products():
    name = "_scaled_dot_product_cudnn_attention"
    forward, causal = attend(name), attend(name, is_causal=True)
    assert attention.flops(forward) == 4 * 2 * 8 * 4096**2 * 128
    assert attention.flops(attend(name + "_backward")) == 2.5 * attention.flops(forward)
    whole, half = (work_of(operator, H200).seconds for operator in (forward, causal))
    assert 0.5 < half / whole < 0.6
    dropped = work_of(attend(name, dropout_p=0.1), H200).seconds
    assert dropped > whole
    flash = work_of(attend("_scaled_dot_product_flash_attention"), H200).seconds
    efficient = work_of(attend("_scaled_dot_product_efficient_attention"), H200).seconds
    assert whole < flash < efficient
    assert work_of(attend(name, kv=1), H200).seconds == pytest.approx(whole, rel=0.01)


def test_convolutions_are_products_of_their_pixels():
    x, w, y = image(32, 64, 56, 56), image(128, 64, 3, 3), image(32, 128, 56, 56)
    options = {"stride": [1, 1], "groups": 1, "transposed": False}
    forward = of("convolution", x, w, out=y, **options)
    assert convolutions.flops(forward) == 2 * 32 * 56 * 56 * 128 * 64 * 9
    both = of("convolution_backward", y, x, w, out=(x, w), output_mask=[True, True, False], **options)
    assert convolutions.flops(both) == 2 * convolutions.flops(forward)
    only = of("convolution_backward", y, x, w, out=(x, w), output_mask=[False, True, False], **options)
    assert work_of(only, H200).seconds < work_of(both, H200).seconds


def test_depthwise_convolutions_have_their_own_flops():
    x, w = image(64, 256, 28, 28), image(256, 1, 7, 7)
    options = {"stride": [1, 1], "groups": 256, "transposed": False, "output_mask": [True, True, False]}
    back = of("convolution_backward", x, x, w, out=(x, w), **options)
    assert convolutions.flops(back) == 2 * 2 * 64 * 28 * 28 * 256 * 49
    assert work_of(back, H200).seconds > convolutions.flops(back) / H200.hardware.peak_flops["fp32"]


def test_strides_cost_instructions():
    plain = contiguous((64, 64, 64), "bfloat16")
    turned = Tensor((64, 64, 64), "bfloat16", (4096, 1, 64))
    row = Tensor((64, 64, 64), "bfloat16", (0, 0, 1))
    assert instructions([plain, plain]) == 0
    assert 0 < instructions([plain, plain, row]) < instructions([plain, turned])
    clone = of("clone", turned, out=plain)
    assert work_of(clone, H200).seconds > work_of(of("clone", plain, out=plain), H200).seconds


def test_a_fused_adamw_moves_fourteen_bytes_a_parameter():
    parameters = contiguous((1 << 28,), "bfloat16")
    update = of("_fused_adamw_", *[parameters] * 4, out=())
    seconds = work_of(update, H200).seconds - constant("kernel")
    assert 14 * (1 << 28) / seconds == pytest.approx(H200.plain_rate * constant("memory.optimizer"))


def chain(*names, compiled=True, phase="forward", begin=0):
    size = contiguous((1 << 24,), "bfloat16")
    return [
        Operator(name, (size,), (size,), {}, compiled, phase, (begin + place - 1,)) for place, name in enumerate(names)
    ]


def test_a_chain_reads_once_and_writes_what_others_read():
    size = 2 << 24
    operators = chain("mul", "mul", "add")
    matrix = contiguous((4096, 4096), "bfloat16")
    operators.append(Operator("mm", (matrix, matrix), (matrix,), {}, True, "forward", (2, -1)))
    fusion = Fusion(operators)
    (run,) = fusion.chains
    assert (run, fusion.work_of(run, H200).bytes) == ([0, 1, 2], 2 * size)
    eager = sum(work_of(operator, H200).seconds for operator in operators[:3])
    assert fusion.work_of(run, H200).seconds < eager / 2


def test_gradients_that_are_added_up_do_not_end_a_chain():
    operators = chain("mul", "mul", phase="backward")
    vector = contiguous((1 << 24,), "bfloat16")
    operators.insert(1, Operator("add_", (vector, vector), (vector,), {}, False, "backward", (-1, -1)))
    operators[2] = replace(operators[2], sources=(0,))
    assert Fusion(operators).chains == [[0, 2]]


def test_sums_of_columns_are_kernels_of_their_own():
    rows = contiguous((1 << 14, 1 << 10), "bfloat16")
    total = Operator("sum", (rows,), (contiguous((1 << 10,), "bfloat16"),), {"dim": [0]}, True, "backward", (-1,))
    alone = Fusion([total])
    assert alone.work_of(alone.chains[0], H200).bytes == rows.bytes
    both = Fusion([Operator("mul", (rows,), (rows,), {}, True, "backward", (-1,)), replace(total, sources=(0,))])
    assert both.work_of(both.chains[0], H200).seconds > alone.work_of(alone.chains[0], H200).seconds


def test_the_backward_pass_computes_again_what_is_not_stored():
    size = 2 << 24
    operators = chain("gelu", "mul", "add")
    matrix = contiguous((4096, 4096), "bfloat16")
    operators.append(Operator("mm", (matrix, matrix), (matrix,), {}, True, "forward", (2, -1)))
    vector = contiguous((1 << 24,), "bfloat16")
    # It reads the result of gelu, which is not stored: the input of gelu is read instead.
    operators.append(Operator("mul", (vector, vector), (vector,), {}, True, "backward", (0, -1)))
    fusion = Fusion(operators)
    _, back = fusion.chains
    assert fusion.work_of(back, H200).bytes == 2 * size
    assert [p for p in fusion._stored if p[0] == 0] == []


def test_a_chain_of_many_readers_is_walked_once():
    image = contiguous((64, 64), "float32")
    forward = [
        Operator("cat", (image,) * 10, (image,), compiled=True, sources=(place - 1,) * 10) for place in range(20)
    ]
    backward = Operator("neg", (image,), (image,), compiled=True, phase="backward", sources=(19,))
    fusion = Fusion([*forward, backward])
    assert fusion.work_of(fusion.chains[-1], H200).bytes <= 11 * image.bytes


def test_small_kernels_are_bound_by_the_host():
    queues, add = Queues(), of("add", contiguous((4,), "float32"), out=contiguous((4,), "float32"))
    work = work_of(add, H200)
    for _ in range(1000):
        queues.dispatch(work.kernels, dispatch_s(add, H200))
    assert queues.device_s == pytest.approx(1000 * dispatch_s(add, H200), rel=0.01)
    long = Queues()
    for _ in range(10):
        long.dispatch([1e-3], dispatch_s(add, H200))
    assert long.device_s == pytest.approx(10e-3, rel=0.01)
    waits = Queues()
    for _ in range(10):
        waits.dispatch([1e-3], dispatch_s(add, H200))
        waits.dispatch([1e-6], dispatch_s(Operator(SYNCHRONIZE), H200), waits=True)
    assert waits.device_s > long.device_s


def test_the_host_takes_its_time_for_each_kernel_that_it_launches():
    add = of("add", contiguous((4,), "float32"), out=contiguous((4,), "float32"))
    alone = dispatch_s(add, H200)
    assert alone == constant("host.operator")
    assert dispatch_s(replace(add, launches=16), H200) == pytest.approx(16 * alone)
    assert dispatch_s(replace(add, host=2.7), H200) == pytest.approx(2.7 * alone)
    # A Grace is slower, and what torch.compile has made is launched by C++.
    assert dispatch_s(add, Machine(find_hardware("gb200"))) == pytest.approx(alone * constant("host.grace"))
    assert dispatch_s(replace(add, compiled=True), H200) < alone / 2


def test_scaled_products_have_their_scales_last():
    left, right, scale = (
        contiguous((64, 32), "float8_e4m3fn"),
        contiguous((32, 128), "float8_e4m3fn"),
        contiguous((), "float32"),
    )
    product = product_of(of("_scaled_mm", left, right, scale, scale, out=contiguous((64, 128), "bfloat16")))
    assert (product.m, product.n, product.k, product.dtype) == (64, 128, 32, "float8_e4m3fn")


def test_flash_attention_by_itself_has_heads_after_the_length():
    """Torch's `_flash_attention_forward`: batch x length x heads x size, or the tokens of sequences in a row."""
    usual = contiguous((2, 4, 256, 64), "bfloat16")
    expected = work_of(of("_scaled_dot_product_flash_attention", usual, usual, usual, out=usual, is_causal=True), H200)
    apart, packed = contiguous((2, 256, 4, 64), "bfloat16"), contiguous((512, 4, 64), "bfloat16")
    assert work_of(of("_flash_attention_forward", apart, apart, apart, out=apart, is_causal=True), H200) == expected
    call = of("_flash_attention_forward", packed, packed, packed, out=packed, is_causal=True, max_q=256, max_k=256)
    assert work_of(call, H200) == expected


@pytest.mark.parametrize("name", ["mm", "_scaled_dot_product_flash_attention", "native_layer_norm", "cat"])
def test_tensors_without_elements_take_a_launch(name):
    empty = contiguous((0, 8) if name in ("mm", "cat") else (1, 2, 0, 8), "bfloat16")
    work = work_of(of(name, empty, empty, empty, out=empty, normalized_shape=[8]), H200)
    assert (work.flops, work.kernels) == (0, (constant("kernel"),))


_IMAGE = contiguous((8, 8), "float32")
PROBLEMS = [
    (of("mm", out=_IMAGE), "mm needs inputs: at least 2, not 0"),
    (of("mm", _IMAGE, contiguous((8,), "float32"), out=_IMAGE), "mm takes tensors of 2 dimensions, not of 1"),
    (of("addmm", _IMAGE, _IMAGE), "addmm needs outputs: at least 1, not 0"),
    (of("_grouped_mm", _IMAGE, _IMAGE, out=_IMAGE), "no tensor of 3 dimensions"),
    (
        of("_scaled_dot_product_flash_attention", *[contiguous((8, 8, 8), "float16")] * 3),
        "takes tensors of 4 dimensions",
    ),
    (of("native_layer_norm", _IMAGE), '"normalized_shape" of native_layer_norm must be a list of sizes'),
    (of("native_layer_norm", _IMAGE, normalized_shape=[0]), '"normalized_shape"'),
    (of("convolution", image(1, 8, 4, 4), image(8, 8, 1, 1), out=image(1, 8, 4, 4), stride=[1, 1]), '"groups"'),
    (of("add", contiguous((8,), "bfloat61"), out=_IMAGE), "unknown dtype 'bfloat61'"),
]


@pytest.mark.parametrize(("operator", "problem"), PROBLEMS, ids=lambda value: getattr(value, "name", None))
def test_operators_that_cannot_be_timed_are_errors(operator, problem):
    assert problem in problem_of(operator)


def test_operators_of_no_special_form_can_be_timed():
    for operator in (of("anything"), of("_softmax", contiguous((), "float32")), of("zero_"), of("_foreach_add_")):
        assert problem_of(operator) is None
        assert work_of(operator, H200).seconds > 0


dtypes = st.sampled_from(["bfloat16", "float32", "int64"])
tensors = st.builds(
    lambda shape, dtype, stride: replace(contiguous(shape, dtype), strides=tuple(stride * s for s in shape)),
    st.lists(st.integers(1, 64), max_size=4),
    dtypes,
    st.integers(0, 3),
) | st.builds(contiguous, st.lists(st.integers(1, 64), max_size=4), dtypes)
attributes = st.dictionaries(
    st.sampled_from(["dim", "p", "is_causal", "mode"]),
    st.booleans() | st.integers(-(2**31), 2**31) | st.floats(allow_nan=False, allow_infinity=False) | st.just("x"),
    max_size=3,
)


@st.composite
def steps(draw):
    count, fused = draw(st.integers(1, 12)), draw(st.booleans())
    operators = []
    for place in range(count):
        inputs = tuple(draw(st.lists(tensors, max_size=3)))
        compiled = fused and (place == 0 or draw(st.booleans()))
        sources = tuple(draw(st.integers(-1, place - 1)) for _ in inputs) if fused else ()
        operator = Operator(
            draw(st.sampled_from(["add", "mul", "exp", SYNCHRONIZE])),
            inputs,
            tuple(draw(st.lists(tensors, min_size=1, max_size=2))),
            draw(attributes),
            compiled,
            draw(st.sampled_from(["forward", "backward", "update"])),
            sources,
            draw(st.booleans()),
        )
        operators.append(operator)
    a, b = sorted((draw(st.integers(0, count)), draw(st.integers(0, count))))
    return Step(tuple(operators), ((0, a),), {"w": draw(st.integers(0, b - a))}, (a, b), (b, count))


def _traced(step):
    """Return a trace of these operators."""
    return paceline.Trace.from_dict(
        {
            "format": "paceline-trace",
            "version": 2,
            "name": "one",
            "batch": 1,
            "dtype": "float32",
            "workers": [
                {
                    "forward": [{"layer": "l", "duration_s": 0.1, "tensors": ["w"]}],
                    "gradients": [{"tensor": "w", "ready_s": 0.1, "bytes": 4}],
                }
            ],
            "operators": step.document(),
        }
    )


@given(steps())
def test_a_trace_keeps_the_operators_of_its_step(step):
    trace = _traced(step)
    kept = Step.of(paceline.Trace.from_json(trace.to_json()).operators())
    assert kept == step
    assert kept.times(H200) == step.times(H200)


def test_a_trace_with_operators_that_cannot_be_timed_names_the_kind():
    step = Step((of("mm", out=_IMAGE), of("add", _IMAGE)), ((0, 1),), {"w": 1}, (1, 2), (2, 2))
    with pytest.raises(paceline.InvalidArgumentError, match=r"one: operators\.kinds\[0\]: mm needs inputs") as raised:
        paceline.simulate(_traced(step), workers=1, gpu="h100")
    assert "paceline record --gpu" in str(raised.value.remedy)


def test_a_step_of_more_than_a_day_names_the_gpu():
    huge = contiguous((10**7, 10**7), "float32")
    step = Step((of("mm", huge, huge, out=huge), of("add", _IMAGE)), ((0, 1),), {"w": 1}, (1, 2), (2, 2))
    with pytest.raises(paceline.InvalidArgumentError, match="one: a step takes longer than a day on H100"):
        paceline.simulate(_traced(step), workers=1, gpu="h100")


def test_a_step_that_follows_another_takes_as_long_again():
    add = of("add", contiguous((1 << 24,), "float32"), out=contiguous((1 << 24,), "float32"))
    step = Step((add, add, add), ((0, 1),), {"w": 1}, (1, 2), (2, 3))
    times = step.times(H200)
    each = work_of(add, H200, add.outputs[0]).seconds
    assert times.forward_s == pytest.approx((each,), rel=1e-6)
    assert times.ready_s["w"] == times.backward_s
    assert times.optimizer_s == pytest.approx(each, rel=1e-6)


def test_constants_have_sources():
    for one in all_constants().values():
        assert one.source
        assert not one.calibrated or one.prior is not None


SCRIPT = """
import json, torch
from torch import nn
from torch.nn import functional as F
from paceline.torch.simulated.mode import enter
simulation = enter("GPU", None)

def names(run):
    before = len(simulation.clock.operators)
    run()
    return [operator.name for operator in simulation.clock.operators[before:]]

def heads(size=64, kv=8, dtype=torch.bfloat16, length=256):
    return [torch.zeros(2, count, length, size, dtype=dtype, requires_grad=True) for count in (8, kv, kv)]

def attend(*tensors, **options):
    return [name for name in names(lambda: F.scaled_dot_product_attention(*tensors, **options)) if "product" in name]

mask = torch.zeros(256, 256, dtype=torch.bool)
answers = {
    "causal": attend(*heads(), is_causal=True),
    "dropout": attend(*heads(), dropout_p=0.1),
    "grouped": attend(*heads(kv=2), is_causal=True, enable_gqa=True),
    "masked": attend(*heads(), attn_mask=mask),
    "biased": attend(*heads(), attn_mask=torch.zeros(1, 8, 256, 256, dtype=torch.bfloat16, requires_grad=True)),
    "fp32": attend(*heads(dtype=torch.float32)),
    "aligned": attend(*heads(size=60)),
}
x = torch.zeros(8, 32, requires_grad=True)
answers["drop"] = names(lambda: F.dropout(x, 0.1))
answers["eval"] = names(lambda: F.dropout(x, 0.1, training=False))
weight = torch.zeros(32, requires_grad=True)
answers["rms"] = names(lambda: F.rms_norm(x, (32,), weight).backward(torch.zeros(8, 32)))
with torch.autocast("cuda", dtype=torch.bfloat16):
    low = x.bfloat16()
    outputs = F.layer_norm(low, (32,)), low.softmax(-1), x @ x.t(), F.gelu(low)
    answers["autocast"] = [str(t.dtype)[6:] for t in outputs]
net = nn.Conv2d(16, 16, 3).cuda().to(memory_format=torch.channels_last)
answers["layout"] = net.weight.is_contiguous(memory_format=torch.channels_last)
image = torch.zeros(4, 16, 32, 32).to(memory_format=torch.channels_last)
answers["convolution"] = names(lambda: net(image).sum().backward())
answers["reads"] = [bool((x == 1).all()), bool((x == 1).any())]
print(json.dumps(answers))
"""


@pytest.mark.process
@pytest.mark.parametrize(
    ("gpu", "expected"),
    [
        ("h200", {"causal": "cudnn", "dropout": "cudnn", "grouped": "cudnn", "masked": "cudnn"}),
        ("a100", {"causal": "flash", "dropout": "flash", "grouped": "flash", "masked": "efficient"}),
        ("v100", {"causal": "math", "dropout": "math", "grouped": "math", "masked": "math"}),
    ],
)
def test_a_script_dispatches_what_its_gpu_would_run(gpu, expected):
    """By aten/src/ATen/native/transformers/cuda/sdp_utils.cpp, and what else torch decides by the device."""
    done = cli.ended(sys.executable, "-c", SCRIPT.replace("GPU", gpu))
    assert done.returncode == 0, done.stderr
    answers = json.loads(done.stdout)
    for case, kernel in {
        **expected,
        "fp32": "efficient",
        "biased": expected["masked"].replace("cudnn", "efficient"),
    }.items():
        wanted = [] if kernel == "math" else [f"_scaled_dot_product_{kernel}_attention"]
        assert answers[case] == wanted, case
    assert answers["drop"] == ["native_dropout"]
    assert answers["eval"] == []
    assert [name for name in answers["rms"] if "rms" in name] == ["_fused_rms_norm", "_fused_rms_norm_backward"]
    assert answers["autocast"] == ["float32", "float32", "bfloat16", "bfloat16"]
    assert answers["layout"] is True
    assert not {"clone", "copy_"} & set(answers["convolution"])
    assert answers["reads"] == [True, False]


def test_flash_attention_2_keeps_up_with_small_tensor_cores():
    """Its instructions feed a share of a whole multiprocessor's Tensor Cores, which is more than an H20 has."""
    share = {
        name: Machine(find_hardware(name)).attention_rate("flash", "forward", 128)
        / Machine(find_hardware(name)).attention_rate("cudnn", "forward", 128)
        for name in ("h100", "h200", "h20")
    }
    assert share["h100"] == pytest.approx(share["h200"], rel=0.01)
    assert share["h20"] == pytest.approx(share["h100"] / constant("attention.flash.later"), rel=0.01)


def recorded(operator, device):
    step = Step((operator,), ((0, 1),), {"w": 0}, (1, 1), (1, 1))
    return paceline.Trace.from_dict(
        {
            "format": "paceline-trace",
            "version": 2,
            "name": "one",
            "batch": 1,
            "dtype": "float32",
            "device": find_hardware(device).title,
            "workers": [
                {
                    "forward": [{"layer": "l", "duration_s": 0.1, "tensors": ["w"]}],
                    "gradients": [{"tensor": "w", "ready_s": 0.0, "bytes": 4}],
                    "backward_s": 0.0,
                }
            ],
            "operators": step.document(),
        }
    )


def test_attention_of_a_recording_takes_the_kernel_of_the_gpu():
    of_h200, of_a100 = (attend(f"_scaled_dot_product_{name}_attention", is_causal=True) for name in ("cudnn", "flash"))
    on_a100 = retimed(recorded(of_h200, "h200"), find_hardware("a100"))
    assert on_a100.forward_s == retimed(recorded(of_a100, "a100"), find_hardware("a100")).forward_s
    on_h200 = retimed(recorded(of_a100, "a100"), find_hardware("h200"))
    assert on_h200.forward_s == retimed(recorded(of_h200, "h200"), find_hardware("h200")).forward_s
    # A script that took the flash kernel where torch prefers cuDNN's keeps it.
    own = retimed(recorded(of_a100, "h200"), find_hardware("b200"))
    assert own.forward_s == retimed(recorded(of_a100, "b200"), find_hardware("b200")).forward_s
    assert own.forward_s != retimed(recorded(of_h200, "b200"), find_hardware("b200")).forward_s


def test_what_a_cpu_dispatched_is_no_gpus():
    trace = recorded(attend("_scaled_dot_product_flash_attention_for_cpu"), "h100")
    with pytest.raises(paceline.InvalidArgumentError, match="a CPU dispatches other operators"):
        retimed(trace, find_hardware("h200"))


def test_attributes_are_what_json_has():
    torch = pytest.importorskip("torch")
    from paceline.torch.simulated.calls import operator_of

    call, values, mask = torch.ops.aten.masked_fill.Scalar, torch.zeros(2), torch.ones(2, dtype=torch.bool)
    arguments = (values, mask, -math.inf)
    assert not operator_of(call, arguments, {}, call(*arguments), writers={}).attributes
    arguments = (values, mask, 2.0)
    assert operator_of(call, arguments, {}, call(*arguments), writers={}).attributes == {"value": 2.0}
