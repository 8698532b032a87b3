"""Hand-made timelines for `paceline doctor`, in the runtime's format, and their reading."""

import json
import os
import tempfile
from pathlib import Path

import pytest
from paceline import InvalidArgumentError
from paceline.doctor import diagnose
from paceline.doctor.reading import read

FIRST, LAST = '{"displayTimeUnit": "ms", "traceEvents": [\n', "\n]}\n"
COMPUTE, EGRESS, INGRESS, OPERATIONS, TENSORS, COORDINATOR = range(6)


class Ranks:
    """Writes a timeline as ranks do; times are milliseconds."""

    def __init__(self, size, servers=0, **host):
        self.events = []
        self.numbers = [0] * (size + servers)
        for rank in range(size + servers):
            name = f"worker {rank}" if rank < size else f"server {rank - size}"
            self.metadata(rank, "process_name", name=name)
            where = {"host": host} if host else {}
            self.metadata(rank, "paceline", rank=rank, since_us=0.0, dropped=0, **where)

    def metadata(self, process, what, **args):
        self.events.append({"args": args, "name": what, "ph": "M", "pid": process + 1, "tid": 0})

    def mark(self, rank, category, begin, end, name=None):
        self._complete(rank, COMPUTE, name or category, category, (begin, end))

    def coordinator(self, rank, what, begin, end):
        self._complete(rank, COORDINATOR, what, "coordinator", (begin, end))

    def _complete(self, rank, thread, name, category, span):
        begin, end = span
        event = {"args": {}, "cat": category, "dur": (end - begin) * 1000.0, "name": name, "ph": "X"}
        self.events.append({**event, "pid": rank + 1, "tid": thread, "ts": begin * 1000.0})

    def _pair(self, rank, thread, name, span, **args):
        category = {OPERATIONS: "operation", TENSORS: "tensor"}.get(thread, "message")
        event = {"cat": category, "id": f"{rank}.{len(self.events)}", "name": name, "pid": rank + 1, "tid": thread}
        self.events.append({"args": args, **event, "ph": "b", "ts": span[0] * 1000.0})
        self.events.append({**event, "ph": "e", "ts": span[1] * 1000.0})

    def operation(self, rank, begin, end, size=1000, name="all_reduce float32[250]", *, call="all_reduce"):
        self.numbers[rank] += 1
        args = {"call": call, "bytes": size, "operation": self.numbers[rank]}
        self._pair(rank, OPERATIONS, name, (begin, end), **args)
        return self.numbers[rank]

    def tensor(self, rank, name, times, operation, size=1000):
        requested, agreed, done = times
        args = {"bytes": size, "operation": operation, "together": 1, "negotiated_us": (agreed - requested) * 1000.0}
        self._pair(rank, TENSORS, name, (requested, done), **args)
        self._pair(rank, TENSORS, "NEGOTIATE_ALLREDUCE", (requested, agreed))
        self._pair(rank, TENSORS, "ALLREDUCE", (agreed, done))

    def message(self, rank, sender, receiver, size, *, out, operation=1):
        args = {"bytes": size, "from": sender, "operation": operation, "to": receiver}
        name = receiver if out else sender
        self._pair(rank, EGRESS if out else INGRESS, name, (1, 2), **args)

    def text(self):
        lines = (json.dumps(event, separators=(",", ":"), sort_keys=True) for event in self.events)
        return FIRST + ",\n".join(lines) + LAST

    def write(self, path):
        path.write_text(self.text())
        return path

    def write_part(self, path):
        """Write them as the part of a rank, which is an array."""
        path.write_text("[\n" + self.text().removeprefix(FIRST).removesuffix(LAST) + "\n]\n")


def diagnosed(ranks):
    """The diagnosis of a timeline."""
    with tempfile.TemporaryDirectory() as folder:
        return diagnose(ranks.write(Path(folder) / "run.json"))


def ddp(ranks, rank, at, *, input=1, forward=2, backward=10, ready=(8,), done=(9,), optimizer=1, moved=1 << 20):
    """A step under DistributedDataParallel from `at` on; gradients `ready` and `done` after backward's begin."""
    ranks.mark(rank, "input", at, at + input)
    ranks.mark(rank, "forward", at + input, at + input + forward)
    begin = at + input + forward
    for number, (since, until) in enumerate(zip(ready, done, strict=True)):
        ranks.operation(rank, begin + since, begin + until, moved, f"all_reduce float32[{number}]")
    ranks.mark(rank, "backward", begin, begin + backward)
    ranks.mark(rank, "optimizer", begin + backward, begin + backward + optimizer)
    return begin + backward + optimizer


def training(steps=8, size=2, **step):
    """Some equal steps on all ranks."""
    ranks = Ranks(size)
    for rank in range(size):
        at = 0
        for _ in range(steps):
            at = ddp(ranks, rank, at, **step)
    return ranks


def names(report):
    return [it.name for it in report.diagnoses]


def test_what_is_read(tmp_path):
    ranks = Ranks(2, servers=1)
    ranks.mark(0, "forward", 1, 2.5)
    number = ranks.operation(0, 3, 5, 4000, "a and 1 more")
    ranks.tensor(0, "negotiate", (2, 2.5, 5), number, 3000)
    ranks.operation(0, 2.2, 2.4, 12, "which tensors are ready")
    ranks.coordinator(0, "late wake-up", 2, 2.2)
    ranks.message(0, "worker 0", "server 0", 4000, out=True)
    ranks.message(0, "server 0", "worker 0", 3000, out=False)
    recording = read(ranks.write(tmp_path / "run.json"))
    first, second = recording.ranks
    assert (recording.world_size, recording.missing, recording.notes) == (2, [], [])
    assert [server.rank for server in recording.servers] == [2]
    assert (second.rank, second.operations) == (1, [])
    assert [(span.begin, span.end) for span in first.marks["forward"]] == [(1_000_000, 2_500_000)]
    (operation,) = first.operations
    assert (operation.number, operation.call, operation.size) == (1, "all_reduce", 4000)
    (tensor,) = first.tensors
    assert (tensor.name, tensor.size, tensor.requested, tensor.agreed, tensor.done) == (
        *("negotiate", 3000),
        *(2_000_000, 2_500_000, 5_000_000),
    )
    assert [vote.name for vote in first.votes] == ["which tensors are ready"]
    assert [span.end for span in first.coordinator["late wake-up"]] == [2_200_000]
    assert first.moved == {(1, "worker 0", True): 4000, (1, "worker 0", False): 3000}


def test_a_file_that_was_formatted_anew(tmp_path):
    ranks = training()
    other = tmp_path / "pretty.json"
    other.write_text(json.dumps(json.loads(ranks.text()), indent=2))
    bare = tmp_path / "bare.json"
    bare.write_text(json.dumps(json.loads(ranks.text())["traceEvents"]))
    expected = diagnosed(ranks).to_dict()
    assert diagnose(other).to_dict() == expected
    assert diagnose(bare).to_dict() == expected


def test_parts_that_were_never_put_together(tmp_path):
    whole = training(size=3)
    for rank in (0, 2):
        part = Ranks(0)
        part.events = [event for event in whole.events if event["pid"] == rank + 1]
        part.write_part(tmp_path / f"run.json.rank-{rank}")
    (tmp_path / "run.json.rank-1").write_text('[\n{"ph":"M","pi')  # it was killed
    report = diagnose(tmp_path / "run.json")
    assert report.analysis.ranks == [0, 2]
    assert report.to_dict()["world_size"] == 3
    first, second = report.analysis.notes
    assert "read its parts" in first
    assert "no recording of rank 1 " in second


def test_parts_of_several_jobs(tmp_path):
    for age, (run, size) in enumerate({"0a": 3, "0b": 2}.items()):
        whole = training(size=size)
        for rank in range(size):
            part = Ranks(0)
            part.events = [event for event in whole.events if event["pid"] == rank + 1]
            path = tmp_path / f"run.json.{run}.rank-{rank}"
            part.write_part(path)
            os.utime(path, (age, age))
    assert diagnose(tmp_path / "run.json").analysis.ranks == [0, 1]


def test_ranks_that_only_messages_name():
    ranks = training(size=2)
    ranks.message(0, "worker 0", "worker 3", 10, out=True)
    report = diagnosed(ranks)
    assert report.analysis.recording.missing == [3]  # nothing mentions rank 2
    assert "rank 3 " in report.analysis.notes[0]


def test_dropped_spans_are_said():
    ranks = training()
    ranks.events[1]["args"]["dropped"] = 1234
    (note,) = diagnosed(ranks).analysis.notes
    assert "rank 0 dropped 1234 spans" in note


def test_steps_that_are_counted():
    for steps, warm_up in ((1, 0), (2, 1), (4, 1), (8, 2), (12, 3), (100, 3)):
        report = diagnosed(training(steps))
        assert (report.analysis.count, report.analysis.warm_up) == (steps - warm_up, warm_up)
        assert report.to_dict()["step_s"] == pytest.approx(0.014)


def test_two_optimizers_make_one_step():
    ranks = training(6)
    for rank in (0, 1):
        for step in range(6):
            ranks.mark(rank, "optimizer", 14 * step + 12.5, 14 * step + 12.9)
    assert diagnosed(ranks).to_dict()["step_s"] == pytest.approx(0.014)


def test_fewer_steps_on_one_rank():
    ranks = training(8)
    ddp(ranks, 1, 8 * 14)
    report = diagnosed(ranks)
    assert report.analysis.count == 6
    assert "between 8 and 9 steps" in report.analysis.notes[0]


@pytest.mark.parametrize(("cores", "is_crowded"), [(1, True), (2, False)])
def test_ranks_that_share_cores_are_warned_of(cores, is_crowded):
    ranks = Ranks(2, name="node-a", processes=2, cores=cores)
    for rank in range(2):
        at = 0.0
        for _ in range(8):
            at = ddp(ranks, rank, at)
    report = diagnosed(ranks)
    said = "2 processes of this job share 1 core of node-a and take turns"
    assert any(said in note for note in report.analysis.notes) == is_crowded
    assert report.analysis.recording.is_on_one_host
    assert not any("between hosts" in one for it in report.diagnoses for one in it.tries)


@pytest.mark.parametrize(
    "wrong",
    [{"cores": 0}, {"processes": 10**400}, {"name": None}, {"name": "x" * 300}, {"name": "a\u202eb"}, {"name": ""}],
)
def test_hosts_that_cannot_be(wrong):
    ranks = training()
    ranks.events[1]["args"]["host"] = {"name": "a", "processes": 2, "cores": 2, **wrong}
    with pytest.raises(InvalidArgumentError, match="cannot be understood"):
        diagnosed(ranks)
