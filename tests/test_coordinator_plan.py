"""Plans that jobs run by: their file, what is wrong with one, and ranks that follow one."""

import json

import pytest
from hvd_workers import plans
from hvd_workers.launch import RankError, run
from hypothesis import given, settings
from hypothesis import strategies as st
from paceline.errors import InvalidArgumentError
from paceline.hvd.plan_file import read_plan
from paceline.job.settings import Settings
from paceline_lab.plan import Graph, plan_graph


def planned(names, bucket_size="64MB", dtype="float32"):
    nodes = [{"name": name, "all_reduce": {"dtype": dtype, "bytes": size}} for name, size in names.items()]
    document = {"format": "paceline-graph", "version": 1, "name": "step", "nodes": nodes, "edges": []}
    return plan_graph(Graph.from_json(json.dumps(document).encode(), "step"), list(names), bucket_size)


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "plan.json"
    planned({"a": 8, "b": 4, "c": 12}, 12).save(path)
    return path


def test_a_saved_plan_is_read(file):
    plan = read_plan(file)
    assert plan.buckets == ((("a", "float32", 8), ("b", "float32", 4)), (("c", "float32", 12),))
    assert json.loads(file.read_text())["format"] == "paceline-plan"
    again = file.with_name("again.json")
    planned({"a": 8, "b": 4, "c": 12}, 12).save(again)
    assert read_plan(again).digest == plan.digest
    planned({"a": 8, "b": 4, "c": 12}, 8).save(again)
    assert read_plan(again).digest != plan.digest


def changed(file, change):
    document = json.loads(file.read_text())
    change(document)
    file.write_text(json.dumps(document))
    with pytest.raises(InvalidArgumentError) as error:
        read_plan(file)
    assert str(file) in str(error.value) and error.value.remedy
    return str(error.value)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda it: it.update(version=2), "version: must be 1, not 2"),
        (lambda it: it.update(format="paceline-trace"), "is not a plan"),
        (lambda it: it.pop("tensors"), "tensors: must be a list"),
        (lambda it: it["tensors"].append(3), "tensors[3]: must be an object"),
        (lambda it: it["tensors"][1].update(name="a"), "tensors[1].name: 'a' is that of tensors[0]"),
        (lambda it: it["tensors"][1].update(name=""), "tensors[1].name: must be a name"),
        (lambda it: it["tensors"][1].update(dtype=4), "tensors[1].dtype: must be a dtype, not 4"),
        (lambda it: it["tensors"][1].update(bytes=-4), "tensors[1].bytes: must be a number of bytes, not -4"),
        (lambda it: it["tensors"][1].update(bytes=True), "tensors[1].bytes: must be a number of bytes, not True"),
        (lambda it: it["tensors"][1].update(bytes=1 << 70), "tensors[1].bytes: must be a number of bytes"),
        (lambda it: it["tensors"][1].update(dtype="float16"), "buckets[0].tensors: has tensors of several dtypes"),
        (lambda it: it["buckets"].pop(), "buckets: none has tensor 2, 'c'"),
        (lambda it: it["buckets"][1].update(tensors=[2, 0]), "buckets[1].tensors: tensor 0 is in a bucket already"),
        (lambda it: it["buckets"][1].update(tensors=[3]), "buckets[1].tensors: 3 is no id of 3 tensors"),
        (lambda it: it["buckets"][1].update(tensors=[]), "buckets[1].tensors: must be a list of ids"),
        (lambda it: it.update(tensors=[], buckets=[]), "has no all-reduces"),
    ],
)
def test_what_is_wrong_in_a_plan_is_named(file, change, said):
    assert said in changed(file, change)


def test_a_graph_is_no_plan(tmp_path):
    path = tmp_path / "graph.json"
    path.write_text('{"format": "paceline-graph", "version": 1}')
    with pytest.raises(InvalidArgumentError, match="is a graph, not a plan") as error:
        read_plan(path)
    assert error.value.remedy == f"paceline plan {path} --json > plan.json"
    with pytest.raises(InvalidArgumentError, match=r"missing.json: no such file"):
        read_plan(tmp_path / "missing.json")


LEAVES = st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.text(max_size=3) | st.floats()
DOCUMENTS = st.recursive(LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner))
FIELDS = st.fixed_dictionaries(
    {"format": st.just("paceline-plan"), "version": st.just(1)},
    optional={
        "tensors": st.lists(
            st.dictionaries(st.sampled_from(["name", "dtype", "bytes"]), LEAVES) | DOCUMENTS, max_size=3
        ),
        "buckets": st.lists(st.dictionaries(st.just("tensors"), st.lists(LEAVES, max_size=3)) | DOCUMENTS, max_size=3),
    },
)


@settings(deadline=None, max_examples=200)
@given(FIELDS | DOCUMENTS)
def test_any_document_is_a_plan_or_refused(tmp_path_factory, document):
    path = tmp_path_factory.mktemp("plan") / "plan.json"
    path.write_text(json.dumps(document))
    try:
        plan = read_plan(path)
    except InvalidArgumentError as error:
        assert error.remedy
    else:
        names = [name for bucket in plan.buckets for name, _, _ in bucket]
        assert names and len(names) == len(set(names))


def test_a_plan_needs_the_coordinator_that_follows_it():
    for other in ({"coordinator": "negotiate"}, {"strategy": "ps", "servers": 1}):
        with pytest.raises(InvalidArgumentError, match="only graph, among ranks without servers, follows a plan"):
            Settings.from_environment({}, coordinator_plan="plan.json", **other)
    known = Settings.from_environment({"PACELINE_COORDINATOR_PLAN": "plan.json"})
    assert known.coordinator_plan == "plan.json"
    with pytest.raises(InvalidArgumentError, match="call operations in the same order"):
        known.refuse_coordinator()


@pytest.mark.process
@pytest.mark.parametrize("ranks", [2, 3])
def test_ranks_follow_a_plan_and_train_as_one(ranks, tmp_path):
    path = tmp_path / "plan.json"
    planned(plans.SIZES, 700, "float64").save(path)
    buckets = [len(bucket) for bucket in read_plan(path).buckets]
    assert len(buckets) > 2 and max(buckets) > 1
    run(ranks, plans.follows, len(buckets), env={"PACELINE_COORDINATOR_PLAN": str(path)})


@pytest.mark.process
def test_a_plan_of_another_model_and_other_plans_are_told(tmp_path):
    path, other = tmp_path / "plan.json", tmp_path / "other.json"
    few = dict(list(plans.SIZES.items())[:-1])
    planned(few, dtype="float64").save(path)
    missing = list(plans.SIZES)[-1]
    with pytest.raises(RankError, match=f"is no plan of this step: it lacks '{missing}'"):
        run(2, plans.follows, 1, env={"PACELINE_COORDINATOR_PLAN": str(path)})
    planned(plans.SIZES, dtype="float64").save(other)
    env = {0: {"PACELINE_COORDINATOR_PLAN": str(path)}, 1: {"PACELINE_COORDINATOR_PLAN": str(other)}}
    with pytest.raises(RankError, match=r"PACELINE_COORDINATOR_PLAN is plan \w+ on rank 0 and plan \w+ on rank 1"):
        run(2, plans.follows, 1, env_of=env)
