"""Parts of asynchronous training, without processes: messages, the clock, placement, and a server's parameters."""

import dataclasses
import json

import cli
import paceline
import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("torch")
import torch
from paceline.async_ps.clock import Clock
from paceline.async_ps.placing import parts_by_server
from paceline.async_ps.protocol import (
    MOST_NUMBERS,
    REPLY_BYTES,
    REQUEST,
    Kind,
    ModelSpec,
    Part,
    Registration,
    Reply,
    Request,
    State,
    TensorSpec,
    difference,
)
from paceline.async_ps.report import Applied, parsed, staleness_of
from paceline.async_ps.rules import RULES, rule_of
from paceline.async_ps.store import Snapshots, Store, digest_of
from paceline.errors import InvalidArgumentError, JobError

COUNT = st.integers(0, 2**62)
FINITE = st.floats(allow_nan=False)


# Messages.


@given(st.sampled_from(Kind), st.tuples(*[COUNT] * 5), st.lists(FINITE, max_size=MOST_NUMBERS))
def test_a_request_arrives_as_it_was_sent(kind, counts, numbers):
    fields = dict(zip(("model", "part", "iteration", "pushes", "size"), counts, strict=True))
    sent = Request(kind=kind, **fields, numbers=numbers)
    got = Request.parsed(sent.packed())
    assert dataclasses.replace(got, numbers=numbers) == sent
    assert list(got.numbers) == [*numbers, *[0.0] * (MOST_NUMBERS - len(numbers))]


@given(st.binary(min_size=REQUEST, max_size=REQUEST))
def test_any_bytes_are_a_request_or_refused(message):
    try:
        assert Request.parsed(message).kind in Kind
    except JobError as error:
        assert error.remedy


@given(st.binary(min_size=REPLY_BYTES, max_size=REPLY_BYTES))
def test_any_bytes_are_a_reply_or_refused(message):
    try:
        reply = Reply.parsed(message)
        assert 0 <= reply.remedy <= reply.size
    except JobError:
        pass


def test_a_reply_arrives_as_it_was_sent():
    assert Reply.parsed(Reply(True, 12, 3).packed()) == Reply(True, 12, 3)


def spec(*shapes, rule="SGD", staleness=None, servers=1, dtype="float32", flags=None, records=True):
    tensors = tuple(TensorSpec(f"t{at}", shape, dtype, 0) for at, shape in enumerate(shapes))
    [parts, *_] = parts_by_server(tensors, servers, "round-robin", {})
    return ModelSpec(rule, (flags or {},), tensors, tuple(parts), staleness, records)


def test_a_model_arrives_as_it_was_described():
    model = spec((2, 3), (), (5,), staleness=4, flags={"nesterov": True})
    states = [State(0, "momentum_buffer"), State(1, "step", 3.0)]
    assert Registration.parsed(model.packed(states, "abc")) == Registration(model, tuple(states), "abc")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.floats(allow_nan=False) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


@given(st.data())
def test_any_document_is_a_model_or_refused(data):
    """Every field of a valid description in turn has any other value."""
    document = json.loads(spec((2, 3), (4,)).packed([State(0, "step", 1.0)], "d"))
    places = [(document, key) for key in document]
    places += [(document["tensors"][0], key) for key in document["tensors"][0]]
    places += [(document["parts"][0], key) for key in document["parts"][0]]
    places += [(document["states"][0], key) for key in document["states"][0]]
    where, key = data.draw(st.sampled_from(places))
    where[key] = data.draw(JSON)
    try:
        registration = Registration.parsed(json.dumps(document).encode())
    except JobError as error:
        assert "a description of a model that no worker sends" in str(error)
    else:
        for part in registration.spec.parts:
            assert part.start + part.count <= registration.spec.tensors[part.tensor].elements


@given(st.binary(max_size=40))
def test_any_bytes_are_refused_as_a_model(text):
    with pytest.raises(JobError):
        Registration.parsed(text)


def test_a_model_too_large_is_refused_before_memory_is_taken():
    with pytest.raises(JobError):
        Registration.parsed(spec((2**39, 2)).packed([], ""))


@pytest.mark.parametrize(
    ("other", "words"),
    [
        (spec((2, 4), (4,)), "'t0' as float32[2, 3] here, 't0' as float32[2, 4] there"),
        (spec((2, 3), (4,), dtype="float64"), "float32[2, 3] here, 't0' as float64[2, 3] there"),
        (spec((2, 3)), "2 parameters here, 1 there"),
        (spec((2, 3), (4,), rule="Adam"), "SGD here, Adam there"),
        (spec((2, 3), (4,), flags={"nesterov": True}), "{} here, {'nesterov': True} there"),
        (spec((2, 3), (4,), staleness=1), "staleness none here, 1 there"),
        (spec((2, 3), (4,), records=False), "only one of them records the order"),
    ],
)
def test_differences_are_named(other, words):
    own = spec((2, 3), (4,))
    assert difference(own, own) is None
    assert words in difference(own, other)


# The clock.


@given(st.integers(1, 4), st.integers(0, 3), st.data())
def test_no_worker_starts_too_early_and_some_worker_always_may(workers, bound, data):
    """By any order: a started iteration c has all others at c - N or later, and the slowest is never held up."""
    clock = Clock(workers, bound)
    done = [0] * workers
    for _ in range(30):
        free = [worker for worker in range(workers) if not clock.missing(worker, done[worker])]
        assert min(range(workers), key=done.__getitem__) in free
        worker = data.draw(st.sampled_from(free))
        assert all(done[other] >= done[worker] - bound for other in range(workers) if other != worker)
        done[worker] += 1
        clock.finish(worker, done[worker])
    assert max(done) - min(done) <= bound + 1


def test_missing_workers_are_named_and_those_that_left_are_not():
    clock = Clock(3, 1)
    clock.finish(0, 3)
    clock.finish(1, 1)
    assert clock.missing(0, 3) == [1, 2]
    clock.leave(2)
    assert clock.missing(0, 3) == [1]
    assert Clock(3, None).missing(0, 1000) == []


# Placement.


@given(
    st.lists(st.tuples(st.integers(0, 7), st.sampled_from(["float64", "float32", "bfloat16"])), max_size=9),
    st.integers(1, 4),
    st.sampled_from(["round-robin", "even"]),
)
def test_every_element_is_on_one_server_and_aligned(sizes, servers, placement):
    tensors = [TensorSpec(f"t{at}", (size,), dtype, 0) for at, (size, dtype) in enumerate(sizes)]
    placed = parts_by_server(tensors, servers, placement, {})
    all_parts = [part for parts in placed for part in parts]
    elements = [(part.tensor, at) for part in all_parts for at in range(part.start, part.start + part.count)]
    assert sorted(elements) == [(index, at) for index, tensor in enumerate(tensors) for at in range(tensor.elements)]
    for parts in placed:
        start = 0
        for part in parts:
            size = {"float64": 8, "float32": 4, "bfloat16": 2}[tensors[part.tensor].dtype]
            assert start % size == 0
            start += part.count * size


def test_a_file_places_by_name_and_names_what_is_missing():
    tensors = [TensorSpec(name, (1,), "float32", 0) for name in "ab"]
    assert parts_by_server(tensors, 2, "p.json", {"a": 1, "b": 0}) == [[Part(1, 0, 1)], [Part(0, 0, 1)]]
    with pytest.raises(InvalidArgumentError, match=r'p\.json: "b": is missing'):
        parts_by_server(tensors, 2, "p.json", {"a": 1})


# The server's parameters.

OPTIONS = {
    "SGD": {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1},
    "Adam": {"betas": (0.7, 0.9), "amsgrad": True, "weight_decay": 0.1},
    "AdamW": {"weight_decay": 0.2, "maximize": True},
    "Adagrad": {"lr_decay": 0.1, "eps": 0.01},
    "RMSprop": {"momentum": 0.3, "centered": True},
}


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
def test_a_store_does_what_torch_does(rule, dtype):
    """The same gradients in the same order, with a learning rate that changes: the same bits, states included."""
    parameter = torch.linspace(-1, 1, 35, dtype=getattr(torch, dtype)).reshape(5, 7)
    optimizer = getattr(torch.optim, rule)([parameter], lr=0.1, **OPTIONS[rule])
    known = rule_of(optimizer)
    store = Store(spec((5, 7), rule=rule, dtype=dtype, flags=known.flags_of(optimizer.param_groups[0])), 2)
    store.fill(parameter.reshape(-1).view(torch.uint8), (), torch.empty(0, dtype=torch.uint8))
    for step in range(4):
        [group] = optimizer.param_groups
        group["lr"] = 0.1 / (1 + step)
        parameter.grad = torch.sin(torch.arange(35.0) + step).to(parameter.dtype).reshape(5, 7)
        own = parameter.grad.reshape(-1).clone()
        optimizer.step()
        worker = step % 2
        store.apply(worker, 0, step // 2, known.numbers_of(group), own)
        store.finish(worker, step // 2 + 1)
    assert digest_of([store.flat]) == digest_of([parameter])
    states, tensors = store.states()
    values = iter(tensors)
    for state in states:
        want = optimizer.state[parameter][state.key]
        if state.number is None:
            assert torch.equal(next(values), want.reshape(-1))
        else:
            assert state.number == float(want)


def test_states_move_to_another_store():
    numbers = RULES["Adam"].numbers_of({"lr": 0.1, "betas": (0.9, 0.99), "eps": 1e-8, "weight_decay": 0.0})
    first, second = Store(spec((4,), rule="Adam"), 1), Store(spec((4,), rule="Adam"), 1)
    first.apply(0, 0, 0, numbers, torch.arange(4.0))
    states, tensors = first.states()
    values = torch.cat([tensor.view(torch.uint8) for tensor in tensors])
    assert second.nbytes_of(states) == values.nbytes
    second.fill(first.flat, states, values)
    first.finish(0, 1)
    first.apply(0, 0, 1, numbers, torch.ones(4))
    second.apply(0, 0, 0, numbers, torch.ones(4))
    assert torch.equal(first.flat, second.flat)
    with pytest.raises(JobError, match="comes twice"):
        first.nbytes_of([states[0], states[0]])


def test_staleness_is_the_updates_between_pull_and_application():
    store = Store(spec((1,), (2,)), 2)
    numbers = RULES["SGD"].numbers_of({"lr": 0.1, "momentum": 0.0, "dampening": 0.0, "weight_decay": 0.0})

    def push(worker, part, iteration):
        return store.apply(worker, part, iteration, numbers, store.new_gradient(part).zero_())

    assert [push(0, 0, 0), push(1, 0, 0), push(0, 1, 0)] == [0, 1, 0]
    store.finish(0, 1)
    store.snapshots.give_back(store.pull(0))
    assert [push(0, 0, 1), push(1, 1, 0)] == [0, 1]
    assert store.staleness() == {0: {0: 3}, 1: {1: 2}}
    assert store.order == [[0, 0, 0, 0, 0], [0, 1, 0, 1, 0], [1, 0, 0, 0, 0], [0, 0, 1, 2, 2], [1, 1, 0, 1, 0]]
    for worker, part, iteration in ((0, 0, 1), (0, 1, 3), (1, 7, 0)):
        with pytest.raises(JobError, match="twice or out of order"):
            store.check(worker, part, iteration)
    with pytest.raises(JobError, match="out of order"):
        store.finish(1, 2)


def test_copies_of_the_parameters_are_shared_and_used_again():
    weights = torch.zeros(4)
    copies = Snapshots(weights)
    first, same = copies.take(0), copies.take(0)
    assert first is same
    weights += 1
    second = copies.take(1)
    assert second is not first and torch.equal(first, torch.zeros(4)) and torch.equal(second, torch.ones(4))
    copies.give_back(first)
    assert copies.take(2) is not first
    copies.give_back(same)
    assert copies.take(3) is first


def test_a_store_refuses_what_it_does_not_know():
    with pytest.raises(JobError, match="cannot run the optimizer LBFGS"):
        Store(spec((1,), rule="LBFGS"), 1)
    with pytest.raises(JobError, match="SGD has no flag amsgrad"):
        Store(spec((1,), flags={"amsgrad": True}), 1)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (torch.optim.LBFGS, "cannot run the optimizer torch.optim.lbfgs.LBFGS"),
        (lambda it: torch.optim.Adam(it, capturable=True), "capturable=True"),
        (lambda it: torch.optim.Adagrad(it, initial_accumulator_value=1.0), "Adagrad starts from zero"),
    ],
)
def test_optimizers_that_servers_cannot_run(make, words):
    with pytest.raises(InvalidArgumentError, match=words) as refused:
        rule_of(make([torch.zeros(1, requires_grad=True)]))
    assert refused.value.remedy


# Settings.


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("run -np 2 --strategy async-ps --chunk 64KiB -- true", "--chunk: has no effect on jobs with async-ps"),
        ("run -np 2 --strategy async-ps --pull layer -- true", "--pull: has no effect on jobs with async-ps"),
        ("run -np 2 --strategy async-ps --staleness -1 -- true", "--staleness"),
        ("run -np 2 --strategy ps --staleness 1 -- true", "--staleness: has no effect on ps"),
        ("run -np 2 --elastic --strategy async-ps -- true", "--strategy async-ps does not work with --elastic"),
        ("bench -np 2 --engine paceline --strategy async-ps", "does not end with the weights of other engines"),
    ],
)
def test_what_has_no_effect_is_refused(words, said):
    assert said in " ".join(cli.refused(*words.split()).split())


def test_arrays_have_no_optimizer():
    with pytest.raises(InvalidArgumentError, match="a job of arrays has none") as refused:
        paceline.job.join(strategy="async-ps")
    assert "DistributedOptimizer" in refused.value.remedy


# Reports.


def test_staleness_over_servers():
    result = staleness_of([{0: {0: 3, 2: 1}}, {1: {2: 4}, 0: {0: 1}}])
    assert (result.counts, result.gradients, result.most, result.mean) == ({0: 4, 2: 5}, 9, 2, 10 / 9)
    assert result.by_worker == {0: {0: 4, 2: 1}, 1: {2: 4}}
    assert str(result) == "mean 1.11, at most 2: 0 44%, 2 56%"
    assert str(staleness_of([])) == "no gradients yet"
    assert Applied("t", 0, 1, 2, 7, 4).staleness == 3


@given(JSON)
def test_any_report_is_read_or_refused(document):
    if not isinstance(document, dict):
        document = {"staleness": document, "order": document}
    try:
        parsed(document)
    except JobError as error:
        assert "a report that no server sends" in str(error)
