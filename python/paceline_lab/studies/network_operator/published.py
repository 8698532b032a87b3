"""The paper's published values, row by row, and the configuration of each.

M. A. Chang, D. Bottini, L. Jian, P. Kumar, A. Panda, S. Shenker, "How to Train your DNN: The Network Operator Edition".
32 workers, 25 Gbit/s and one server unless the row says otherwise. Rows of one table agree with one another to about
0.5 %, different tables to about 2 %: that is the study's own noise.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from paceline_lab.studies.network_operator.runs import Config
from paceline_lab.studies.network_operator.variants import SLICES, TOY_GBPS

MODELS = ("vgg-16", "inception-v3", "resnet-101", "resnet-200")
TITLES = {
    "vgg-16": "VGG-16",
    "inception-v3": "Inception-v3",
    "resnet-101": "ResNet-101",
    "resnet-200": "ResNet-200",
    "toy": "toy",
}


@dataclass(frozen=True)
class Inputs:
    """The paper's table of inputs. The "first" backward pass is the one that runs first: the last layer's."""

    layers: int
    gigabits: float
    forward_s: float
    backward_after_first_s: float
    backward_network_s: float


INPUTS = {
    "inception-v3": Inputs(21, 0.715, 0.176, 0.296, 0.028),
    "vgg-16": Inputs(22, 6.58, 0.169, 0.024, 0.263),
    "resnet-101": Inputs(103, 1.42, 0.176, 0.180, 0.052),
    "resnet-200": Inputs(202, 2.06, 0.357, 0.34, 0.082),
}


@dataclass(frozen=True)
class Row:
    """One published value: times x seconds of `config` minus `offset`, or seconds of `over` / those of `config`."""

    table: str
    row: str
    model: str
    published: float
    config: Config
    over: Config | None = None
    times: float = 1.0
    offset: float = 0.0
    unit: str = "s"
    calibrated: bool = False

    def configs(self) -> tuple[Config, ...]:
        """Return the configurations to simulate for it."""
        return (self.config,) if self.over is None else (self.config, self.over)


GIVEN = "mechanisms at 32 workers"
TABLE_1 = "Table 1"
TABLE_9 = "Table 9"
TOY = "toy example"

# In the order of MODELS; None where nothing is published.
_Values = tuple[float | None, float | None, float | None, float | None]


def _each(values: _Values) -> Iterator[tuple[str, float]]:
    for model, value in zip(MODELS, values, strict=True):
        if value is not None:
            yield model, value


def calibrated_rows() -> list[Row]:
    """Return the rows on which the traces' few free parameters were calibrated."""
    rows: list[Row] = []

    def add(row: str, values: _Values, **settings: object) -> None:
        for model, value in _each(values):
            config = Config(model, **settings)  # type: ignore[arg-type]
            rows.append(Row(GIVEN, row, model, value, config, calibrated=True))

    add("parameter server alone (derived)", (16.82, 1.875, 3.636, 5.562), strategy="ps")
    for model, value in _each((1.89, 1.34, 1.65, 1.65)):
        config, over = Config(model, "ps-aggregation"), Config(model, "ps")
        name = "aggregation, speed-up over the server alone"
        rows.append(Row(GIVEN, name, model, value, config, over, unit="x", calibrated=True))
    both = "ps-multicast-aggregation"
    add("multicast + aggregation", (None, 0.569, 0.598, 0.830), strategy=both)
    name = "multicast + aggregation, 8 servers, tensors cut"
    add(name, (None, 0.549, 0.551, 0.820), strategy=both, servers=8, slices=SLICES)
    add("ring with messages", (None, 0.562, 0.556, 0.824), strategy="ring", chunk="per-worker")
    add("aggregation, 10 Gbit/s", (22.3, 2.99, 4.9, 7.77), strategy="ps-aggregation", gbps=10)
    add("block distribution, 10 Gbit/s", (21.7, 3.1, 4.94, 7.79), strategy="ps", distribution="block", gbps=10)
    for model, value in _each((21.0, 2.29, 4.57, 7.15)):
        config = table_1_config(model, 1)
        rows.append(Row(TABLE_1, "1 server, simulated", model, value, config, calibrated=True))
    return rows


def shown_rows() -> list[Row]:
    """Return the rows on which no parameter was calibrated."""
    return [*_mechanisms(), *_by_rate(), *_modules_and_speed(), *_table_1(), *_table_9(), *_toy()]


def _mechanisms() -> Iterator[Row]:
    """Return the other rows of the mechanisms at 32 workers and 25 Gbit/s."""
    both = "ps-multicast-aggregation"
    vgg = "vgg-16"
    yield Row(GIVEN, "multicast + aggregation", vgg, 0.765, Config(vgg, both))
    yield Row(GIVEN, "ring with messages", vgg, 0.683, Config(vgg, "ring", chunk="per-worker"))
    name = "multicast + aggregation, 8 servers, tensors cut"
    # Its largest tensor is 0.83 of the model, for which 8 pieces are too coarse: 8 servers x 32 workers are exact.
    yield Row(GIVEN, name, vgg, 0.539, Config(vgg, both, servers=8, slices=256))
    speed_ups: tuple[tuple[str, dict[str, str], _Values], ...] = (
        ("butterfly", {"strategy": "recursive-doubling"}, (11.3, 3.41, 6.46, 6.79)),
        ("multicast", {"strategy": "ps-multicast"}, (1.94, 1.69, 1.79, 1.85)),
        ("ring + multicast", {"strategy": "ring-multicast", "chunk": "per-worker"}, (24.6, 3.41, 6.71, 6.76)),
    )
    for name, settings, values in speed_ups:
        for model, value in _each(values):
            config, over = Config(model, **settings), Config(model, "ps")  # type: ignore[arg-type]
            yield Row(GIVEN, f"{name}, speed-up over the server alone", model, value, config, over, unit="x")


BY_RATE = "other rates"


def _by_rate() -> Iterator[Row]:
    """Return the rows at 10 and 100 Gbit/s."""
    whole = Config("vgg-16", "ring", gbps=10, chunk="whole")
    yield Row(BY_RATE, "ring without messages, 10 Gbit/s", "vgg-16", 34.0, whole)
    for model, value in _each((2.23, 0.71, 0.89, 1.19)):
        yield Row(BY_RATE, "aggregation, 100 Gbit/s", model, value, Config(model, "ps-aggregation", gbps=100))
    for model, value in _each((2.27, 0.77, 0.94, 1.45)):
        config = Config(model, "ps", gbps=100, distribution="block")
        yield Row(BY_RATE, "block distribution, 100 Gbit/s", model, value, config)


FASTER = "faster computation"


def _modules_and_speed() -> Iterator[Row]:
    """Return the speed-ups over the server alone with three times the computing speed."""
    model = "resnet-200"
    over = Config(model, "ps", compute_speedup=3.0)
    for name, strategy, value in (
        ("multicast + aggregation", "ps-multicast-aggregation", 19.5),
        ("butterfly", "recursive-doubling", 10.0),
    ):
        config = Config(model, strategy, compute_speedup=3.0)
        yield Row(FASTER, f"{name}, speed-up with 3 times the compute", model, value, config, over, unit="x")


# Table 1: 8 workers; 1, 2, 4 and 8 servers with TensorFlow's assignment, simulated by the authors and real. The rate
# is not published; 5 Gbit/s fits the first column.
TABLE_1_GBPS = 5
TABLE_1_SERVERS = (1, 2, 4, 8)
TABLE_1_SIMULATED = {
    "vgg-16": (21.0, 22.5, 19.3, 18.2),
    "inception-v3": (2.29, 2.29, 1.37, 0.852),
    "resnet-101": (4.57, 2.37, 1.52, 1.5),
    "resnet-200": (7.15, 3.34, 2.3, 2.29),
}
TABLE_1_REAL = {
    "vgg-16": (22.5, 22.8, 20.8, 19.3),
    "inception-v3": (2.16, 2.16, 1.49, 1.3),
    "resnet-101": (3.7, 1.58, 0.855, 0.9),
    "resnet-200": (5.89, 2.3, 1.71, 1.71),
}


def table_1_config(model: str, servers: int) -> Config:
    """Return the configuration of a column of Table 1."""
    return Config(model, "ps", 8, TABLE_1_GBPS, servers=servers, tensorflow=True)


def _table_1() -> Iterator[Row]:
    for source, values in (("simulated", TABLE_1_SIMULATED), ("real", TABLE_1_REAL)):
        for place, servers in enumerate(TABLE_1_SERVERS):
            for model in MODELS:
                if (source, servers) != ("simulated", 1):  # one of the rows used for calibration
                    name = f"{servers} server{'s' if servers > 1 else ''}, {source}"
                    yield Row(TABLE_1, name, model, values[model][place], table_1_config(model, servers))


# Table 9: without the barrier, multicast and aggregation; the time of two iterations.
TABLE_9_S = {"vgg-16": 1.76, "inception-v3": 0.988, "resnet-101": 1.08, "resnet-200": 1.65}


def _table_9() -> Iterator[Row]:
    name = "no barrier, multicast + aggregation, 2 iterations"
    for model, seconds in TABLE_9_S.items():
        config = Config(model, "ps-multicast-aggregation", barrier=False)
        yield Row(TABLE_9, name, model, seconds, config, times=2)


def _toy() -> Iterator[Row]:
    """Return the end of the aggregation phase: an iteration minus the multicast of the model, 3 times 3 s.

    Their switch does not store and forward; with whole tensors ours does, and takes 3 s more, so they are cut here.
    """
    for model, words, alone, aggregated in (
        ("toy", "workers together", 21.0, 12.0),
        ("toy, staggered", "workers staggered by 3 s", 21.0, 15.0),
    ):
        for strategy, name, seconds in (
            ("ps-multicast", "server alone", alone),
            ("ps-multicast-aggregation", "aggregation", aggregated),
        ):
            config = Config(model, strategy, 2, TOY_GBPS, chunk="100MB")
            yield Row(TOY, f"{name}, {words}", "toy", seconds, config, offset=9.0)
