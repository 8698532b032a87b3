"""Intervals: how wide cases make them, and where there are none."""

import math
import random
from dataclasses import replace

import paceline
import pytest
from hypothesis import given
from hypothesis import strategies as st
from paceline.forecast import evidence
from paceline.forecast.evidence import Question, covered, interval
from paceline.forecast.kinds import Ground
from paceline.forecast.likeness import (
    APART,
    FP32_QUANTIZED,
    LEVEL,
    UNLISTED,
    Conditions,
    Like,
    architecture_of,
    conditions_of,
    conditions_of_recording,
    scale_of,
    size_of,
)

H100 = Conditions("hopper", "decoder", "16 bits", "one node", "data", "fused", "trained")
likes = st.builds(Like, st.sampled_from("abc"), st.integers(0, APART), st.floats(-1, 1))


def question(conditions, gpus=8, nodes=1):
    return Question("ddp", "nccl", "native", "rdma", gpus, nodes, 3.2e12, conditions=conditions, gpus=gpus)


@given(st.lists(likes, min_size=1))
def test_a_size_is_that_of_a_case(cases):
    size = size_of(cases)
    assert size in {abs(case.residual) for case in cases}
    assert size_of([replace(case, residual=-case.residual) for case in cases]) == size
    # Wider where all are off by more.
    assert size_of([replace(case, residual=2 * case.residual) for case in cases]) == pytest.approx(2 * size)


def test_alike_cases_have_the_quantile():
    cases = [Like(str(place), 0, place / 10) for place in range(1, 11)]
    assert size_of(cases) == LEVEL


def test_a_case_that_differs_counts_less():
    near = [Like(str(place), 0, 0.1) for place in range(8)]
    assert size_of([*near, Like("x", 0, 0.5), Like("y", 0, 0.5), Like("z", 0, 0.5)]) == 0.5
    assert size_of([*near, Like("x", 2, 0.5), Like("y", 2, 0.5), Like("z", 2, 0.5)]) == 0.1


def test_a_source_counts_once_however_many_cases_it_has():
    many = [Like("a", 0, 0.5)] * 9
    assert size_of([*many, *(Like(str(place), 0, 0.1) for place in range(3))]) == 0.5
    assert size_of([*many, *(Like(str(place), 0, 0.1) for place in range(4))]) == 0.1


def test_a_source_that_nobody_has_seen_may_be_further_off_than_any():
    cases = [Like(str(place), 0, place / 10) for place in range(1, 10)]
    # Of ten alike, eight are within the size of the eighth.
    assert size_of(cases, unseen=1) == pytest.approx(0.8)
    assert size_of(cases[:2], unseen=1) == pytest.approx(0.2)
    assert size_of(cases, unseen=0) <= size_of(cases, unseen=0.5) <= size_of(cases, unseen=1)


def test_intervals_of_sources_alike_hold_what_they_say():
    """Each source has an offset of its own, and its cases differ little: the setting for which the rule is made."""
    draw, inside, trials = random.Random(3), 0, 600
    for _ in range(trials):
        sources = [(str(place), draw.gauss(0, 0.3)) for place in range(10)]
        *known, (_, offset) = sources
        cases = [Like(name, 0, draw.gauss(own, 0.05)) for name, own in known for _ in range(draw.randint(1, 30))]
        inside += abs(draw.gauss(offset, 0.05)) <= size_of(cases, unseen=1)
    assert LEVEL - 0.04 <= inside / trials <= LEVEL + 0.06


def test_unknown_conditions_agree_with_anything():
    assert H100.differences(Conditions()) == []
    assert H100.differences(replace(H100, architecture="ada", scale="one GPU")) == ["architecture", "scale"]


@pytest.mark.parametrize(("gpus", "nodes", "scale"), [(1, 1, "one GPU"), (8, 1, "one node"), (16, 2, "several nodes")])
def test_scales(gpus, nodes, scale):
    assert scale_of(gpus, nodes) == scale


def test_conditions_of_a_model():
    from paceline.catalog.models.spec import find_workload

    def of(word, **options):
        return conditions_of(find_workload(word, **options), 8, 1)

    assert of("llama-3-8b@h100") == H100
    assert of("bert-large@a100:dtype=fp32") == Conditions(
        "ampere", "encoder", "32 bits", "one node", "data", "fused", "trained"
    )
    assert of("mixtral-8x7b@h100").model == "experts"
    assert of("t5-base@h100").model == "encoder-decoder"
    assert of("vit-large@h100").model == "images"
    assert of("llama-3-8b@h100:dtype=fp8").precision == "8 bits"
    assert of("llama-3-8b@h100", tensor_parallel=2).split == "tensor"
    assert of("llama-3-8b@h100", pipeline_parallel=2, microbatches=4).split == "pipeline"


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (
            {"architecture": "maxwell"},
            "no interval: fewer than two sources have measured Maxwell GPUs in such",
        ),
        ({"architecture": "cpu"}, "have measured CPUs in such"),
        ({"model": "images"}, "models of images"),
        ({"software": "hand-written"}, "hand-written kernels"),
    ],
)
def test_where_nothing_was_measured_there_is_no_interval(change, reason):
    from paceline.forecast.wording import terms

    result, ground = interval(1.0, question(replace(H100, **change)))
    assert result is None
    assert ground.ground is Ground.UNMEASURED
    assert reason in terms.evidence(ground)


def test_computed_times_have_an_interval_whether_or_not_anything_is_communicated():
    for gpus, scale in ((1, "one GPU"), (8, "one node")):
        result, _ = interval(1.0, question(replace(H100, scale=scale), gpus))
        assert result.low_s * result.high_s == pytest.approx(1)
    recorded = Question("ddp", "nccl", "native", "rdma", 1, 1, 3.2e12, communicates=False)
    assert interval(1.0, recorded)[1].ground is Ground.SILENT


def test_an_interval_does_not_know_the_source_that_it_leaves_out():
    sources = {case.source for case in evidence.computed_cases()}
    whole, _ = interval(1.0, question(H100))
    for source in sources:
        result, ground = interval(1.0, question(H100), frozenset((source,)))
        assert source not in ground.sources
        assert result is None or result.cases <= whole.cases


def test_coverage_counts():
    rows = list(zip((0.05, -0.05, 0.1, 0.3, 0.05), (0.1, 0.1, 0.1, 0.1, 0.2), strict=True))
    result = covered([*[("a", *row) for row in rows], ("b", 0.0, None)])
    assert (result.inside, result.known, result.outside, result.share, result.of_sources) == (4, 5, 1, 0.8, 0.8)
    assert result.times == pytest.approx(math.exp(0.1))
    assert covered([("a", 0.0, None)]).known == 0


@pytest.mark.parametrize("coverage", [evidence.coverage_of_models, evidence.coverage_of_memory])
def test_intervals_hold_four_in_five_of_sources_that_nothing_was_fitted_to(coverage):
    """They do not know the case's source. The others are nearer."""
    blind, seen = (coverage(lambda case, blind=blind: case.blind == blind) for blind in (True, False))
    assert min(blind.known, seen.known) >= 60
    assert LEVEL <= min(blind.share, blind.of_sources) <= 0.9
    assert seen.share >= blind.share
    assert coverage().times < 1.4


def test_an_interval_ignores_sources_in_a_context():
    whole, ground = interval(1.0, question(H100))
    with evidence.ignoring(ground.sources[:1]):
        assert interval(1.0, question(H100)) == interval(1.0, question(H100), frozenset(ground.sources[:1]))
    assert interval(1.0, question(H100)) == (whole, ground)


def test_qlora_without_autocast_is_apart():
    quantized = replace(H100, scale="one GPU", software="eager", weights="quantized")
    own = replace(quantized, precision="32 bits", weights=FP32_QUANTIZED)
    assert interval(1.0, question(quantized, 1))[0] is not None
    likely, ground = interval(1.0, question(own, 1))
    assert likely is None and (ground.condition, ground.value) == ("weights", FP32_QUANTIZED)


def test_a_recording_is_computed_whatever_gpu_it_is_timed_on():
    from paceline_lab.studies.steps.data import recording

    step = recording("traces/gpt2-medium.json")
    assert conditions_of_recording(step) == Conditions(precision="16 bits", split="data", software="eager")
    here = paceline.simulate(step, strategy="native", workers=1, gpu="h200")
    assert here.interval.low_s < here.iteration_s < here.interval.high_s
    elsewhere = paceline.simulate(step, strategy="native", workers=1, gpu="b200")
    assert elsewhere.interval is None and "have measured Blackwell GPUs" in elsewhere.evidence
    # A measured rate is not computed.
    measured = paceline.simulate(step, strategy="native", workers=1, samples_per_s=90)
    assert measured.interval is None and "only the trace could be wrong" in measured.evidence


def test_the_gpu_of_an_own_file_is_none_that_was_measured():
    assert architecture_of("My board") == UNLISTED
    _, ground = interval(1.0, question(replace(H100, architecture=UNLISTED)))
    assert ground.ground is Ground.UNMEASURED


@given(st.floats(0, 0.3))
def test_the_spread_of_a_calibrated_device_widens(spread):
    plain, _ = interval(1.0, question(H100))
    wider, _ = interval(1.0, replace(question(H100), spread=spread))
    assert plain is not None
    assert wider is not None
    assert math.log(wider.high_s) == pytest.approx(math.hypot(math.log(plain.high_s), math.log1p(spread)))
    assert wider.low_s * wider.high_s == pytest.approx(1.0)


@pytest.mark.parametrize("kind", evidence.MEMORY_KINDS)
def test_memory_has_an_interval_around_it_whatever_the_architecture(kind):
    conditions = replace(H100, scale="one GPU", software="eager", weights="trained")
    ends = evidence.memory_interval(10**9, kind, conditions)
    assert ends is not None
    assert ends[0] < 10**9 < ends[1]
    assert ends[0] * ends[1] == pytest.approx(1e18, rel=1e-6)
    assert evidence.memory_interval(10**9, kind, replace(conditions, architecture="volta")) == ends


def test_memory_has_no_interval_where_nothing_was_measured():
    assert evidence.memory_interval(10**9, "peak", replace(H100, model="images", weights="quantized")) is None
