"""Whatever the user types, the answer is a forecast or one line."""

import json

import cli
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

_NUMBERS = st.sampled_from(["1", "2", "3", "4,8", "0", "-1", "7,7", "1.5", "", "99999999999", "x"])
_RATES = st.sampled_from(["1Gbps", "25Gbps,10Gbps", "25", "25GB", "0bps", "1e3Tbps", "inf"])
_SIZES = st.sampled_from(["none", "1MB", "64KiB", "4B", "1B", "0B", "whole", "per-worker", "12"])
_NAMES = st.sampled_from(
    ["ring", "ps", "all", "butterfly", "ps,ring", "ps-multicast", "tree", "rnig", "", ",", "hierarchical"]
)
_OPTIONS = {
    "--workers": _NUMBERS,
    "--servers": _NUMBERS,
    "--bandwidth": _RATES,
    "--intra-bandwidth": _RATES,
    "--strategy": _NAMES,
    "--compute-speedup": st.sampled_from(["1", "2,4", "0", "nan", "1e6", "-1"]),
    "--latency": st.sampled_from(["0s", "10us", "1", "1h", "-1us"]),
    "--gpus-per-node": _NUMBERS,
    "--bucket-size": _SIZES,
    "--chunk": _SIZES,
    "--placement": st.sampled_from(["round-robin", "even", "nowhere", "/"]),
    "--distribution": st.sampled_from(["round-robin", "block", "x"]),
    "--pull": st.sampled_from(["layer", "step", "x"]),
    "--inside": st.sampled_from(["root", "ring", "x"]),
    "--network": st.sampled_from(["fifo", "fluid", "x"]),
    "--iterations": _NUMBERS,
    "--seed": _NUMBERS,
    "--samples-per-s": st.sampled_from(["1", "1e9", "0", "x"]),
    "--add-module": st.sampled_from(["compute:1", "network:2", "x:1", "compute"]),
    "--cluster": st.sampled_from(["flat", "p3.16xlarge", "nope", "/"]),
}
_TRACES = st.sampled_from(
    ["allreduce:1MB", "allreduce:40B/3", "allreduce:1kB/2", "netop-vgg-16", "nope", "allreduce:x"]
)
_FLAGS = st.sampled_from(["--barrier", "--no-barrier", "--overlap", "--no-overlap", "--csv", "--bogus"])


@st.composite
def command_lines(draw):
    words = [draw(_TRACES), "--workers", draw(st.sampled_from(["2", "3", "1,4"]))]
    for option in draw(st.lists(st.sampled_from(sorted(_OPTIONS)), max_size=5, unique=True)):
        words += [option, draw(_OPTIONS[option])]
    return words + draw(st.lists(_FLAGS, max_size=2))


def check(words):
    result = cli.call("simulate", *words)
    assert result.exception is None or isinstance(result.exception, SystemExit), words
    assert result.exit_code in (0, 2), (words, result.output)
    if result.exit_code == 2:
        assert result.stderr.startswith("paceline: error: "), words
        assert result.stderr.count("\n") == 2, words
        assert result.stdout == "", words
    return result


@settings(deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(command_lines())
def test_any_options_give_an_answer_or_one_line(words):
    result = check([*words, "--json"])
    if result.exit_code == 0 and "--csv" not in words:
        for run in json.loads(result.stdout, parse_constant=refuse):
            assert run["iteration_s"] >= 0


def refuse(name):
    raise AssertionError(f"{name} in JSON")


@settings(deadline=None, derandomize=True)
@given(st.lists(st.text(max_size=12), max_size=4))
def test_any_words_give_an_answer_or_one_line(words):
    check(["allreduce:1kB", "--workers", "2", "--strategy", "ring", *words])


@settings(deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(command_lines())
def test_tables_never_fail_where_json_does_not(words):
    check(words)
