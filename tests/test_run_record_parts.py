"""The parts of `paceline run --record`: steps without the exchange, traces put together."""

import json

import pytest
from click import unstyle
from paceline.errors import JobError
from paceline.launch import recordings
from paceline.launch.frames import MAGIC, Decoder
from paceline.launch.merge import Recorded, merged, summary
from paceline.launch.recordings import Exchange, Records

# Traces put together


def recorded(rank, forward_s=0.01, gradients=(("b", 8), ("a", 4)), steps=10, options="", **fields):
    worker = {
        "forward": [{"layer": "all", "duration_s": forward_s, "tensors": ["a", "b"]}],
        "gradients": [{"tensor": name, "ready_s": 0.001, "bytes": size} for name, size in gradients],
        "backward_s": 0.02,
        "optimizer_s": 0.005,
    }
    trace = {"format": "paceline-trace", "version": 1, "name": "net", "provenance": f"p{rank}", "batch": 8}
    trace |= {"dtype": "float32", "device": "CPU", "workers": [worker], **fields}
    summary = {"forward_s": forward_s, "backward_s": 0.02, "optimizer_s": 0.005, "steps": steps}
    summary["forecast_options"] = options
    return Recorded(rank, summary, trace, steps)


def test_ranks_in_order():
    every = [recorded(0), recorded(1, 0.035, device="GPU", batch=11)]
    trace = merged(every)
    assert [worker["forward"][0]["duration_s"] for worker in trace["workers"]] == [0.01, 0.035]
    assert (trace["device"], trace["batch"], trace["name"]) == ("CPU, GPU", 10, "net")
    assert trace["provenance"] == (
        "2 ranks of `paceline run`; rank 0: p0; forward, backward and optimizer take from 35 ms (rank 0) to 60 ms "
        "(rank 1); batches from 8 to 11: the trace has their mean"
    )
    assert merged(every[:1]) == every[0].trace


def test_what_is_said(tmp_path):
    def said(every, steps, path=tmp_path):
        lines = unstyle(" ".join(summary(every, merged(every), path, steps)))
        return " ".join(lines.replace("\\ ", "").split())

    every = [recorded(0), recorded(1, 0.035, steps=4)]
    assert said(every, 10, tmp_path / "a b") == (
        "Recorded 4-10 steps of 2 ranks: net, batch 8 "
        "Medians forward 22.5 ms, backward 20 ms, optimizer 5 ms "
        "Slowest rank 1 computes 1.71x as long as rank 0 "
        "Ended early after 4 of 10 requested steps "
        f"Wrote {tmp_path}/a b try: paceline simulate '{tmp_path}/a b' --workers 2,4,8"
    )
    alone = [recorded(0, steps=1, options="--sharding zero3 --param-dtype bfloat16")]
    words = said(alone, 1)
    assert words.startswith("Recorded 1 step of 1 rank: net")
    assert words.endswith(f"simulate {tmp_path} --workers 2,4,8 --sharding zero3 --param-dtype bfloat16")
    for ratio, longer in ((1.287, "recording made steps 29% longer, which is in their times"), (1.05, ""), (None, "")):
        alone[0].summary["overhead_ratio"] = ratio
        words = said(alone, 1)
        assert ("recording made" in words) == bool(longer) and longer in words


@pytest.mark.parametrize(
    ("other", "said"),
    [
        ({"dtype": "float16"}, "the gradients of rank 1 are float16, those of rank 0 float32"),
        ({"gradients": [("b", 8), ("a", 8)]}, "the gradient of a has 8 bytes on rank 1, and 4 on rank 0"),
        ({"gradients": [("b", 8)]}, r"rank 0 has a gradient of a \(4 bytes\), rank 1 has none"),
        (
            {"gradients": [("b", 8), ("a", 4), ("c", 4)]},
            r"rank 1 has a gradient of c \(4 bytes\), rank 0 has none",
        ),
        ({"gradients": [("c", 8), ("a", 4)]}, r"rank 1 has a gradient of c \(8 bytes\), rank 0 has none"),
        ({"gradients": [("a", 4), ("b", 8)]}, "in another order: a on rank 1 when b does on rank 0"),
        ({"gradients": []}, r"rank 0 has a gradient of b \(8 bytes\), rank 1 has none"),
    ],
)
def test_ranks_that_train_something_else(other, said):
    with pytest.raises(JobError, match=said):
        merged([recorded(0), recorded(1, **other)])


# On their way


def test_pieces_of_a_record(monkeypatch):
    exchange = Exchange({"steps": 3, "warmup": 1})
    try:
        environment = exchange.environment(7, {"PYTHONPATH": "/mine", "A": "b"})
        settings = json.loads(environment["PACELINE_RECORD_SETTINGS"])
        assert (settings["steps"], settings["warmup"]) == (3, 1)
        assert environment["PYTHONPATH"].endswith("inject:/mine")
        assert not list(exchange.frames(7))
        folder = exchange._folder / "7"
        (folder / "result.json").write_text('{"error": "e"}')
        monkeypatch.setattr(recordings, "_PIECE", 10)

        def taken():
            records = Records()
            frames = list(Decoder().feed(MAGIC + b"".join(exchange.frames(7))))
            assert len(frames) > 2
            for frame in frames:
                records.add(frame.rank, frame.payload)
            assert records.of(6) == (None, None)
            return records.of(7)

        assert taken() == ({"error": "e"}, None)
        (folder / "trace.json").write_text('{"name": "ü"}')
        assert taken() == ({"error": "e"}, {"name": "ü"})
        monkeypatch.setattr(recordings, "MOST_OF_RANK", 3)
        assert taken()[1] == "its trace has 14 bytes; the limit is 3"
    finally:
        exchange.close()
    assert not folder.exists()


def test_the_launcher_takes_only_so_much(monkeypatch):
    monkeypatch.setattr(recordings, "MOST_OF_ALL", 10)
    records = Records()
    records.add(0, b"12345")
    assert not records.too_large
    records.add(1, b"123456")
    assert records.too_large
    assert records.of(0) == (None, None)
