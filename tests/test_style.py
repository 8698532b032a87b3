"""How pictures look: no color means two things, coinciding lines are one, linear scaling is a line."""

import itertools

import paceline
import pytest
from paceline.catalog.strategies import all_coordinators, all_strategies
from paceline.forecast.kinds import Part
from paceline.forecast.output import plotting, style
from paceline.forecast.output.plotting import figure
from paceline.forecast.wording import terms
from paceline.forecast.wording.rows import distinct
from paceline.forecast.wording.sharding import held_bytes

pytest.importorskip("matplotlib")


def test_no_color_means_two_things():
    kinds = {
        "strategies": set(style.STRATEGIES.values()) | set(style._MORE_STRATEGIES),
        "systems": set(style.SYSTEMS.values()) | set(style._MORE_SYSTEMS),
        "coordinators": set(style.COORDINATORS),
        "parts": set(style.PARTS.values()),
    }
    for one, other in itertools.combinations(kinds, 2):
        assert not kinds[one] & kinds[other], (one, other)
    assert len(set(style.STRATEGIES.values())) == len(style.STRATEGIES)
    assert len(set(style.SYSTEMS.values())) == len(style.SYSTEMS)


def test_every_strategy_and_coordinator_has_its_own_look():
    looks = [style.strategy(one.name) for one in all_strategies()]
    assert len({(look.color, look.marker) for look in looks}) == len(looks)
    assert len(all_coordinators()) <= len(style.COORDINATORS)
    # A system keeps its color, whatever it is compared with.
    assert style.systems(["x", "horovod"])["horovod"].color == style.systems(["Horovod"])["Horovod"].color


def test_every_part_of_a_critical_path_has_a_color():
    cluster = {"gpus_per_node": 2, "latency": "10us", "host_bandwidth": "9Gbps", "reduction_bandwidth": "9Gbps"}
    cluster["racks"] = {"nodes_per_rack": 2, "oversubscription": 4.0}
    for strategy in all_strategies():
        result = paceline.simulate("resnet-18", None, strategy.name, workers=8, bucket_size="25MB", **cluster)
        assert {part.part for part in result.critical_path} <= set(Part)
    assert set(map(terms.part, Part)) <= set(style.PARTS)


def test_every_kind_of_memory_has_a_color():
    result = paceline.simulate("gpt2-small", gpu="h100", workers=8, sharding="zero3")
    assert list(held_bytes(result.sharded)) == list(style.MEMORY)


def test_legends_name_what_differs():
    kinds = {"bucket_size": ["none", "25MB"], "latency": ["5us", "50us"], "compression": ["none", "fp16"]}
    kinds |= {"library": ["ddp", "horovod"], "servers": [1, 2], "coordinator": ["negotiate", "graph"]}
    for kind, values in kinds.items():
        name = "ps" if kind == "servers" else "ring"
        results = [paceline.simulate("resnet-18", None, name, workers=4, **{kind: value}) for value in values]
        labels = [distinct(result, results) for result in results]
        assert len(set(labels)) == 2, (kind, labels)
        if kind != "servers":  # In curves, the fastest number of servers counts.
            axes = style.new_figure(4, 3).add_subplot()
            entries = plotting.draw_lines(axes, results, "workers", 1.0, lambda result: result.samples_per_s)
            assert all(any(label in entry for _, entry in entries) for label in labels), (labels, entries)


def drawn(lines):
    axes = style.new_figure(4, 3).add_subplot()
    return axes, style.draw_lines(axes, lines)


def test_lines_that_coincide_are_drawn_as_one_with_both_names():
    x = [1, 2, 4]
    lines = [
        style.Line("ring", x, [1.0, 2.0, 4.0], style.strategy("ring")),
        style.Line("tree", x, [1.0, 3.0, 9.0], style.strategy("tree")),
        style.Line("native", x, [1.001, 2.0, 4.003], style.strategy("native")),
    ]
    axes, entries = drawn(lines)
    assert [label for _, label in entries] == ["ring = native", "tree"]
    # In the colors of both, in turn.
    dashes = {line.get_color(): line._unscaled_dash_pattern for line in axes.lines}
    (_, first), (_, second) = dashes["#332288"], dashes["#0077BB"]
    assert first == second and dashes["#332288"][0] != dashes["#0077BB"][0]
    style.legend(axes, entries)


def test_linear_scaling_is_a_line():
    for workers in ([2, 3, 4], [2, 8, 64]):
        axes = figure(paceline.sweep("resnet-18", strategy="ring", workers=workers)).axes[1]
        assert (axes.get_xscale() == "log") == (axes.get_yscale() == "log")
        ideal = axes.lines[-1]
        assert ideal.get_color() == style.REFERENCE
        ratios = {round(float(y) / float(x), 6) for x, y in zip(*ideal.get_data(), strict=True)}
        assert len(ratios) == 1


def test_published_marks_are_hollow_and_simulated_ones_are_not():
    axes, _ = drawn([style.Line("ring", [1, 2], [1.0, 2.0], style.strategy("ring"))])
    style.draw_published(axes, [1], [1.1], style.strategy("ring"))
    simulated, published = axes.lines
    assert published.get_markerfacecolor() == "white" and published.get_linestyle() == "None"
    assert simulated.get_markerfacecolor() == simulated.get_color() == published.get_markeredgecolor()


def test_what_is_not_a_number_makes_panels():
    results = paceline.sweep(["resnet-18", "allreduce:10MB"], strategy=["ring", "tree"], workers=4, library="none")
    titles = [axes.get_title() for axes in figure(results).axes]
    assert titles == ["resnet-18", "allreduce:10MB"]
    mixed = paceline.sweep("resnet-18", strategy="ring", workers=[2, 4], bucket_size=["none", "25MB"])
    assert [axes.get_title() for axes in figure(mixed).axes][::2] == ["no fusion", "buckets of 25 MB"]
