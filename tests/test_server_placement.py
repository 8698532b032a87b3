"""`--placement tensorflow` in forecasts: variables on servers in the order of creation, and each server's share."""

import itertools
import json
import random

import cli
import paceline
import pytest
from paceline import InvalidArgumentError, Trace
from paceline._core import Distributed, Gradient, Layer, Worker


def trace(sizes, variables=()):
    """Layers a, b, c, … with one tensor each; elements in `sizes`."""
    names = [chr(ord("a") + number) for number in range(len(sizes))]
    forward = [Layer(name, 0.001, [name]) for name in names]
    gradients = [Gradient(name, 0.001, 4 * size) for name, size in zip(names, sizes, strict=True)]
    return Trace("tiny", 1, "float32", [Worker(forward, gradients)], variables=list(variables))


def test_shares_are_those_of_variables_in_turn():
    # a, its two averages, c, b: on servers 0, 1, 2, 0 and 1 of 3.
    averages = [Distributed("a/mean", 4), Distributed("a/variance", 4)]
    made = trace([10, 20, 70], [Distributed("a"), *averages, Distributed("c"), Distributed("b")])
    result = paceline.simulate(made, strategy="ps", workers=2, servers=3, placement="tensorflow", library="none")
    assert result.server_shares == pytest.approx((0.8, 0.2, 0.0))
    assert result.to_dict()["server_shares"] == pytest.approx([0.8, 0.2, 0.0])


def test_tensors_that_no_variable_names_follow():
    made = trace([1, 2, 4, 8], [Distributed("d"), Distributed("b")])
    result = paceline.simulate(made, strategy="ps", workers=2, servers=4, placement="tensorflow", library="none")
    assert result.server_shares == pytest.approx([share / 15 for share in (8, 2, 1, 4)])


@pytest.mark.parametrize("seed", range(20))
def test_it_is_the_file_with_the_same_servers(seed):
    chance = random.Random(seed)
    sizes = [chance.randint(1, 10**6) for _ in range(chance.randint(1, 12))]
    names = [chr(ord("a") + number) for number in range(len(sizes))]
    created = [*names, *(f"{name}/mean" for name in names if chance.random() < 0.5)]
    chance.shuffle(created)
    made = trace(sizes, [Distributed(name, None if name in names else 4) for name in created])
    servers = chance.randint(1, 5)
    table = [created.index(name) % servers for name in names]
    strategy = chance.choice(["ps", "ps-multicast", "ps-aggregation"])
    run = {"strategy": strategy, "workers": 3, "servers": servers, "library": "none"}
    ours = paceline.simulate(made, placement="tensorflow", **run)
    assert ours.iteration_s == paceline.simulate(made, placement=table, **run).iteration_s
    held = [sum(size for size, at in zip(sizes, table, strict=True) if at == server) for server in range(servers)]
    assert ours.server_shares == pytest.approx([one / sum(sizes) for one in held])


@pytest.mark.parametrize("strategy", ["ps", "ps-multicast", "ps-aggregation", "ps-multicast-aggregation", "sharded-ps"])
def test_shares_of_every_strategy_with_servers(strategy):
    made = trace([3000, 1000])
    for servers in (1, 2, 3):
        result = paceline.simulate(made, strategy=strategy, workers=2, servers=servers, library="none")
        assert len(result.server_shares) == servers
        assert sum(result.server_shares) == pytest.approx(1)
    even = paceline.simulate(made, strategy="ps", workers=2, servers=2, placement="even", library="none")
    assert even.server_shares == pytest.approx((0.5, 0.5))
    assert paceline.simulate(made, strategy="ring", workers=2).server_shares == ()
    assert "server_shares" not in paceline.simulate(made, strategy="ring", workers=2).to_dict()


def test_buckets_of_several_variables_are_refused():
    with pytest.raises(InvalidArgumentError, match="tensorflow places single variables") as refused:
        paceline.simulate(trace([1, 2]), strategy="ps", workers=2, placement="tensorflow", bucket_size="1MB")
    assert refused.value.remedy == "bucket_size='none'"


def test_the_published_times_of_resnet_200():
    words = ["netop-resnet-200", "--workers", 8, "--servers", "1,2,4,8", "--strategy", "ps", "--bandwidth", "5Gbps"]
    rows = json.loads(cli.printed("simulate", *words, "--placement", "tensorflow", "--json"))
    assert [row["iteration_s"] for row in rows] == pytest.approx([6.96, 3.665, 2.31, 2.293], rel=5e-4)
    assert [len(row["server_shares"]) for row in rows] == [1, 2, 4, 8]


def test_explain_says_how_evenly_servers_are_loaded():
    words = ["netop-vgg-16", "--workers", 2, "--servers", 8, "--strategy", "ps", "--placement", "tensorflow"]
    assert "the most loaded has 85.9% of the bytes, the least 0.0%" in cli.printed("simulate", *words, "--explain")


def test_added_modules_have_their_moving_averages():
    bare = paceline.load_trace("netop-inception-v3")
    more = bare.with_modules("network:2")
    added = [one for one in more.variables if one.tensor.startswith("added")]
    assert len(added) == 2 * 10 * 4
    assert [one.bytes for one in added[:4]] == [None, None, 768, 768]
    created = [one.tensor for one in more.variables]
    assert len(created) == len(bare.variables) + len(added)
    first = created.index("added0.branch0.conv.weight")
    assert created[first : first + len(added)] == [one.tensor for one in added], "they are created together"


def test_variables_survive_a_file(tmp_path):
    made = trace([1, 2], [Distributed("b"), Distributed("b/mean", 8), Distributed("a")])
    path = tmp_path / "trace.json"
    path.write_text(made.to_json())
    assert Trace.read(path).variables == made.variables == Trace.read(path).replace(batch=2).variables
    assert [one.bytes for one in made.with_dtype("float16").variables] == [None, 4, None]


@pytest.mark.parametrize(
    ("variables", "says"),
    [
        ([Distributed("z")], "'z' is no tensor of the trace"),
        ([Distributed("a", 4)], "'a' is a tensor of the trace, which gives its bytes"),
        ([Distributed("a"), Distributed("b"), Distributed("a")], r"variables\[2\]: 'a' is listed twice"),
        ([Distributed("m", 10**15), Distributed("n", 10**15)], "at most 1e15 bytes"),
        ([Distributed("m", 0)], "has 0 bytes"),
        ([Distributed("", 4)], "variables: "),
    ],
)
def test_wrong_variables_are_refused(variables, says):
    with pytest.raises(InvalidArgumentError, match=says):
        trace([1, 2], variables)


@pytest.mark.parametrize(
    "variables", ['["a", 5]', '"a"', '[{"tensor": "m"}]', '[{"tensor": "m", "bytes": -4}]', "[[]]"]
)
def test_wrong_json_is_refused(variables):
    text = trace([1, 2]).to_json().replace('"workers"', f'"variables": {variables}, "workers"')
    with pytest.raises(InvalidArgumentError, match="variables"):
        Trace.from_json(text.encode(), "trace.json")


def test_every_order_of_few_variables():
    for created in itertools.permutations("abc"):
        made = trace([1, 10, 100], [Distributed(name) for name in created])
        result = paceline.simulate(made, strategy="ps", workers=1, servers=2, placement="tensorflow", library="none")
        sizes = {"a": 1, "b": 10, "c": 100}
        assert result.server_shares[1] == pytest.approx(sizes[created[1]] / 111)
