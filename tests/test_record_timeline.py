"""One step taken apart, with a clock that the test owns."""

import pytest

torch = pytest.importorskip("torch")
from paceline._internal.recording import overhead  # noqa: E402
from paceline.torch.recorder.modules import needed_tensors, survey  # noqa: E402
from paceline.torch.recorder.step import Event, EventKind, take_apart  # noqa: E402
from paceline.torch.recorder.step_hooks import Gradient, batch_of  # noqa: E402
from paceline.torch.recorder.trace import combine, wire_bytes, wire_dtype  # noqa: E402
from torch import nn  # noqa: E402

# Modules: 0 the root, 1 the first layer, 2 the second. Parameters: 0 and 1 of the first, 2 and 3 of the second.
TABLE, _, _ = survey(nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 4)))


def events(*marks):
    return [Event(*mark) for mark in marks]


FORWARD = (
    (EventKind.FORWARD_START, 8, 1.0),
    (EventKind.CALL, 0, 1.0),
    (EventKind.CALL, 1, 1.25),
    (EventKind.CALL, 2, 2.0),
)
REST = (
    (EventKind.FORWARD_END, 0, 2.5),
    (EventKind.BACKWARD_START, 0, 3.0),
    (EventKind.GRADIENT, 3, 3.5),
    (EventKind.GRADIENT, 2, 4.0),
    (EventKind.GRADIENT, 1, 5.0),
    (EventKind.GRADIENT, 0, 5.5),
    (EventKind.BACKWARD_END, 0, 6.0),
    (EventKind.OPTIMIZER_END, 0, 7.0),
)


def test_a_plain_step():
    step = take_apart(events((EventKind.STEP_START, 0, 0.0), *FORWARD, *REST), TABLE)
    assert step.layers == (1, 2)
    assert step.layer_s == (1.0, 0.5)  # the first layer from the forward's start
    assert (step.loss_s, step.accumulation_s, step.passes) == (0.5, 0.0, 1)
    assert step.ready_s == {3: 0.5, 2: 1.0, 1: 2.0, 0: 2.5}
    assert (step.backward_s, step.optimizer_s, step.input_s, step.batch) == (3.0, 1.0, 1.0, 8)
    assert step.total_s == 7.0


def test_earlier_passes_are_the_accumulation_and_their_samples_count():
    later = [(kind, key, at + 10) for kind, key, at in (*FORWARD, *REST)]
    step = take_apart(events(*FORWARD, *REST[:-1], *later), TABLE)
    assert (step.passes, step.accumulation_s, step.batch) == (2, 10.0, 16)
    assert step.ready_s == {3: 0.5, 2: 1.0, 1: 2.0, 0: 2.5}
    assert step.total_s == 16.0  # without an earlier step, from the first forward on


def test_a_gradient_of_an_earlier_pass_alone_is_ready_when_the_last_backward_starts():
    later = [(kind, key, at + 10) for kind, key, at in (*FORWARD, *REST) if (kind, key) != (EventKind.GRADIENT, 0)]
    step = take_apart(events(*FORWARD, *REST[:-1], *later), TABLE)
    assert step.ready_s == {3: 0.5, 2: 1.0, 1: 2.0, 0: 0.0}


def test_the_backward_of_another_model_is_none_of_ours():
    foreign = ((EventKind.BACKWARD_START, 0, 2.6), (EventKind.BACKWARD_END, 0, 2.7))
    step = take_apart(events(*FORWARD, REST[0], *foreign, *REST[1:]), TABLE)
    assert (step.loss_s, step.passes) == (0.5, 1)


def test_without_a_backward_start_the_backward_follows_the_forward():
    rest = [e for e in REST if e[0] not in (EventKind.BACKWARD_START, EventKind.BACKWARD_END)]
    step = take_apart(events(*FORWARD, *rest), TABLE)
    assert (step.loss_s, step.ready_s[3], step.backward_s, step.saw_backward_start) == (0.0, 1.0, 3.0, False)


def test_a_step_without_gradients_is_no_step():
    assert take_apart(events(*FORWARD, REST[0], REST[-1]), TABLE) is None


def test_a_child_called_after_the_forward_takes_the_time_up_to_the_backward():
    extra = (EventKind.CALL, 2, 2.75)
    step = take_apart(events(*FORWARD, REST[0], extra, *REST[1:]), TABLE)
    assert step.layers == (1, 2, 2)
    assert step.layer_s == (1.0, 0.75, 0.25)
    assert step.loss_s == 0.0


def test_medians_are_per_event_over_steps_of_the_same_shape():
    def step(last_ready, *, odd=False):
        marks = [(k, key, last_ready if (k, key) == (EventKind.GRADIENT, 0) else at) for k, key, at in REST]
        forward = [e for e in FORWARD if not (odd and e[:2] == (EventKind.CALL, 1))]
        return take_apart(events(*forward, *marks), TABLE)

    gradients = {i: Gradient(elements=6, dtype="float32", itemsize=4, sparse=False) for i in range(4)}
    medians = combine([step(5.1), step(9.0, odd=True), step(5.3), step(5.9)], TABLE, gradients)
    ready = {g["tensor"]: g["ready_s"] for g in medians.worker["gradients"]}
    assert ready["0.weight"] == pytest.approx(2.3)
    assert medians.steps == 3
    assert any("1 of 4 steps" in note for note in medians.notes)


def test_the_backward_is_at_least_the_last_ready_gradient():
    rest = [(k, key, 3.1 if k is EventKind.BACKWARD_END else at) for k, key, at in REST]
    step = take_apart(events(*FORWARD, *rest), TABLE)
    assert step.backward_s == 2.5


def test_mixed_dtypes_become_whole_elements_of_the_most_common():
    half = Gradient(elements=3, dtype="float16", itemsize=2, sparse=False)
    single = Gradient(elements=8, dtype="float32", itemsize=4, sparse=False)
    assert wire_dtype([half, single]) == "float32"
    assert wire_bytes(half, 4) == 8  # 6 bytes are two elements of 4
    assert wire_bytes(single, 4) == 32


def test_tensors_of_uncalled_owners_go_to_the_layers_around_them():
    model = nn.ModuleDict({"attention": nn.MultiheadAttention(4, 2), "head": nn.Linear(4, 2)})
    table, modules, _ = survey(model)
    attention = next(i for i, m in enumerate(modules) if isinstance(m, nn.MultiheadAttention))
    head = next(i for i, m in enumerate(modules) if m is model["head"])
    names = [[table.parameter_names[p] for p in needed] for needed in needed_tensors(table, (attention, head))]
    assert set(names[0]) >= {"attention.in_proj_weight", "attention.out_proj.weight", "attention.out_proj.bias"}
    assert names[1] == ["head.weight", "head.bias"]
    (alone,) = needed_tensors(table, (head,))  # nothing ran inside the attention: the first layer of all takes it
    assert len(alone) == len(table.parameter_names)


@pytest.mark.parametrize(
    ("args", "kwargs", "batch"),
    [
        ((torch.zeros(5, 3),), {}, 5),
        ((None, {"ids": torch.zeros(4, 2)}), {}, 4),
        ((), {"x": torch.zeros(6)}, 6),
        (([torch.zeros(3, 8, 8), torch.zeros(3, 9, 9)],), {}, 2),
        (((torch.zeros(7, 1), torch.zeros(2)),), {}, 7),
        ((torch.tensor(1.0),), {}, 1),
        (("text",), {}, 0),
    ],
)
def test_the_batch_is_read_off_the_first_tensor(args, kwargs, batch):
    assert batch_of(args, kwargs) == batch


def test_overhead_is_a_ratio_of_medians():
    cost = overhead([1.01, 1.0, 5.0], [1.0, 0.9, 1.1, 1.0])
    assert cost.ratio == pytest.approx(1.01)
    assert cost.noise == pytest.approx(0.025)
    assert "1.0 % longer" in str(cost)
    assert "±2.5 %" in str(cost)
    # One step has no spread.
    assert str(overhead([0.9], [1.0])).endswith("shorter (median 900 ms of 1 against 1000 ms of 1 without hooks)")
    assert overhead([1.0], []) is None
