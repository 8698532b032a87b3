"""The table of settings: it is complete, and every source of a value gives the same value or the same error."""

import inspect
import json
import re
import tomllib
from dataclasses import fields
from pathlib import Path
from typing import get_args, get_type_hints

import cli
import click
import paceline
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from paceline import InvalidArgumentError, _core
from paceline.catalog import channels, names
from paceline.catalog.libraries import find_library
from paceline.catalog.strategies import KNOBS
from paceline.cli import main
from paceline.cli.simulate import simulate
from paceline.errors import Source
from paceline.forecast.lowering import native
from paceline.forecast.prepare import prepare
from paceline.forecast.request import Sweep
from paceline.forecast.run import result_of
from paceline.forecast.scenario import Scenario
from paceline.job.settings import Settings
from paceline.launch.request import Request
from paceline.ray.settings import RaySettings, create_settings
from paceline.settings import generate, keywords, reference
from paceline.settings.horovod import HOROVOD, REFUSED
from paceline.settings.table import (
    ALIASES,
    CORE,
    EMULATE_RUN,
    FORECASTS,
    JOIN,
    PLACES,
    RAY,
    REQUIRED,
    SETTINGS,
    SIMULATE,
    SWEEP,
    VARIABLES,
    find,
    of_place,
)
from paceline_lab.cli import replay

ROOT = Path(__file__).parent.parent
TINY = str(ROOT / "examples" / "tiny.json")
ALL = list(SETTINGS.values())


def command(place):
    if place == "replay":
        return replay.main
    result = main.main
    for word in place.split():
        result = result.get_command(click.Context(result), word)
    return result


@pytest.mark.parametrize("setting", [*ALL, *HOROVOD.values()], ids=lambda setting: setting.variable or setting.name)
def test_each_setting_has_words_a_check_and_a_default(setting):
    assert re.fullmatch(r"[a-z][a-z0-9_]*", setting.name)
    assert setting.help.endswith((".", "…")) and len(setting.help) < 100
    for place in setting.uses or [None]:
        kind, value = setting.kind_of(place), setting.default_of(place)
        assert kind.words
        assert place is None or place in PLACES
        assert place is None or setting.help_of(place).endswith((".", "…"))
        with pytest.raises(InvalidArgumentError):
            setting.check("\ud800", place=place)
        if value is not None:
            several = list(value) if isinstance(value, tuple) else [value]
            assert setting.check(value, place=place) == (several if kind.is_list else value)
            assert setting.default_text(place)
    assert setting.flag or setting.variable or any(place.startswith("paceline.") for place in setting.uses)


@pytest.mark.parametrize("setting", list(map(SETTINGS.get, VARIABLES.values())), ids=lambda setting: setting.variable)
def test_each_variable_is_read(setting):
    """An invalid value is rejected by name; an empty one counts as unset."""
    assert JOIN in setting.uses
    with pytest.raises(InvalidArgumentError) as caught:
        Settings.from_environment({setting.variable: "\ud800"})
    assert (caught.value.setting, caught.value.source) == (setting.name, Source("variable", setting.variable))
    assert str(caught.value).startswith(f"{setting.variable}: ")
    assert Settings.from_environment({setting.variable: ""}) == Settings()


def test_each_field_of_a_job_is_a_setting():
    internal = {"server_processes", "switch_processes", "nodes_per_rack", "unfused", "disturbance"}
    own = {entry.name for entry in fields(Settings)} - internal
    assert own | {"secret_file"} == {setting.name for setting in of_place(JOIN)} == set(VARIABLES.values())
    for entry in fields(Settings):
        if entry.name not in internal:
            assert entry.default == SETTINGS[entry.name].default


@pytest.mark.parametrize(
    "place", [place for place in PLACES if not place.startswith("paceline.") and place != "report"]
)
def test_each_flag_is_an_option_of_the_commands_that_have_it(place):
    options = {param.name: param for param in command(place).params if isinstance(param, click.Option)}
    for setting in of_place(place):
        option = options[setting.name]
        spellings = "/".join([*option.opts, *option.secondary_opts])
        assert spellings == setting.flag
        assert setting.help_of(place) in option.help
        default = setting.default_text(place)
        words = default if default.startswith(REQUIRED) else f"default: {default}"
        assert not default or setting.kind.is_switch or f"[{words}]" in option.help
    # No command defines one of its own.
    flags = {setting.flag for setting in ALL if setting.flag} - {"--timeline", "--seed"}
    for option in options.values():
        if place in ("run", EMULATE_RUN, "simulate", "validate"):
            assert "/".join([*option.opts, *option.secondary_opts]) not in flags or option.name in SETTINGS


@pytest.mark.parametrize("path", generate.files())
def test_what_is_generated_is_current(path):
    assert (ROOT / path).read_text() == generate.files()[path], "run: make settings"
    assert generate.SAYS in (ROOT / path).read_text().partition("\n")[0]


def test_each_keyword_is_in_the_types():
    def keys(type_):
        return set(get_type_hints(type_))

    own = {"workers", "strategy", "cluster", "executor"}
    assert {setting.name for setting in of_place(SIMULATE)} - own <= keys(keywords.SimulateOptions)
    assert {setting.name for setting in of_place(SWEEP)} - own <= keys(keywords.SweepOptions) | set(CORE)
    cluster = json.loads(paceline.load_cluster("p3.16xlarge").to_json())
    assert set(cluster) - {"format", "version", "bandwidth", "latency", "servers", "channel"} <= keys(
        keywords.ClusterFields
    )
    for function, type_ in ((paceline.simulate, keywords.SimulateOptions), (paceline.sweep, keywords.SweepOptions)):
        [last] = [one for one in inspect.signature(function).parameters.values() if one.kind is one.VAR_KEYWORD]
        assert type_.__name__ in last.annotation


def test_the_core_knows_the_names():
    # It rejects unknown ones.
    for name in ("network", "distribution", "pull", "inside"):
        for word in SETTINGS[name].kind.choices:
            strategy = {"inside": "hierarchical", "network": "ring"}.get(name, "ps")
            paceline.simulate(TINY, None, strategy, workers=4, gpus_per_node=2, **{name: word})
    for word in get_args(names.Dtype):
        paceline.simulate(TINY, workers=2, dtype=word)


def test_the_default_is_what_happens_without_a_value(monkeypatch):
    """Of forecasts, by name and in the core: giving the default changes nothing."""
    for strategy, cluster in (("ps", {}), ("hierarchical", {"gpus_per_node": 2}), ("ring", {"jitter": {"sigma": 0.1}})):
        plain = paceline.simulate(TINY, None, strategy, workers=4, **cluster)
        for setting in of_place(SIMULATE):
            value = setting.default_of(SIMULATE)
            other = (
                setting.name in KNOBS and setting.name not in paceline.catalog.strategies.find_strategy(strategy).knobs
            )
            if value is None or other or setting.name in ("strategy", "cluster"):
                continue
            if setting.name == "seed" and "jitter" not in cluster:
                continue
            said = paceline.simulate(TINY, None, strategy, workers=4, **cluster, **{setting.name: value})
            assert said.to_dict() | {"busy": None} == plain.to_dict() | {"busy": None}, setting.name


def test_the_reference_has_each_setting():
    for setting in ALL:
        assert f"| `{setting.name}` |" in reference.page()
    for variable in [*VARIABLES, *REFUSED, *(one.variable for one in HOROVOD.values())]:
        assert f"`{variable}`" in reference.page()


def test_former_names_still_work():
    with pytest.warns(FutureWarning, match="timeout is now called timeout_s"):
        checked = Request(command=["true"], settings={"timeout": 7}).checked()
    assert checked.settings.timeout_s == 7 and checked.given["PACELINE_TIMEOUT"] == "7"
    assert set(ALIASES.values()) <= set(SETTINGS)


def test_an_error_says_where_its_value_came_from(tmp_path):
    with pytest.raises(InvalidArgumentError) as caught:
        Request(command=["true"], settings={"servers": "0", "strategy": "ps"}, given_by="flag").checked()
    assert (caught.value.setting, str(caught.value.source)) == ("servers", "--servers")
    assert caught.value.reason == "must be 1-60000, not 0"
    # -x sets a variable, even if a flag says otherwise.
    with pytest.raises(
        InvalidArgumentError, match=r"^PACELINE_SERVERS: must be 1-60000, not 0\n  try: PACELINE_SERVERS=1"
    ):
        Request(command=["true"], settings={"servers": "2"}, names=["PACELINE_SERVERS=0"], given_by="flag").checked()
    with pytest.raises(InvalidArgumentError, match=r"^--no-overlap: needs computation, and allreduce:1MB"):
        prepare(Sweep.of("allreduce:1MB", {"overlap": False}, "simulate", "flag"))
    with pytest.raises(InvalidArgumentError) as caught:
        paceline.sweep(
            "allreduce:1MB",
            strategies=["ring", "ps"],
            workers=[3, 4],
            options={"distribution": "block", "barrier": False},
        )
    assert str(caught.value).startswith("ps with 3 workers: ")


def test_settings_of_a_job_on_ray_are_in_the_table():
    assert {entry.name for entry in fields(RaySettings)} == {setting.name for setting in of_place(RAY)}
    for entry in fields(RaySettings):
        assert entry.default == SETTINGS[entry.name].default_of(RAY)
        with pytest.raises(InvalidArgumentError) as caught:
            RaySettings(**{entry.name: -1})
        assert caught.value.setting == entry.name
    assert RaySettings(nics="eth0").interface == "eth0"
    assert inspect.signature(create_settings).parameters["timeout_s"].default == 300


def test_errors_of_the_core_carry_their_setting():
    trace, cluster = paceline.load_trace(TINY), paceline.load_cluster()
    for strategy, options, name in (
        ("ps", {"placement": "even", "chunk": "64KiB"}, "chunk"),
        ("ps", {"placement": [9]}, "placement"),
        ("ps", {"distribution": "block", "barrier": False}, "distribution"),
    ):
        with pytest.raises(InvalidArgumentError) as caught:
            result_of(Scenario.of(trace, cluster, strategy, 4, **options))
        assert caught.value.setting == name
        assert str(caught.value) == f"{name}: {caught.value.reason}"
    with pytest.raises(InvalidArgumentError, match=r"^chunk: needs a strategy") as caught:
        paceline.job.join(chunk="64KiB")
    assert caught.value.setting == "chunk"
    words = ["simulate", TINY, "--strategy", "ps", "--placement", "even", "--chunk", "64KiB", "--workers", "4"]
    assert (
        "--chunk: needs whole tensors, and placement even cuts each into servers x workers pieces"
        in cli.call(*words).stderr
    )


def bare(strategy, workers, *, trace="resnet-18", **options):
    """Return a scenario of the native module without a library."""
    job = (paceline.load_trace(trace), paceline.load_cluster(), strategy, workers)
    return _core.Scenario(*job, library=find_library("none").native(), channels=channels.native(), **options)


@pytest.mark.parametrize(
    ("options", "setting", "reason"),
    [
        ({"workers": 0}, "workers", "must be at least 1"),
        ({"iterations": 0}, "iterations", "must be 1-100000"),
        ({"strategy": "rign"}, "strategy", "unknown strategy 'rign'"),
        ({"compute_speedup": 0.0}, "compute_speedup", "must be 0.000001-1000000, not 0"),
        ({"sharding": "zero3", "sync_every": 2}, "sync_every", "needs all-reduces, and zero3"),
        ({"sharding": "zero4"}, "sharding", "unknown sharding 'zero4'"),
        ({"pull": "tensor"}, "pull", "unknown variant `tensor`"),
        ({"servers": -1}, "servers", "out of range integral type"),
        ({"param_dtype": "float8"}, "param_dtype", "unknown dtype 'float8'"),
    ],
    ids=str,
)
def test_the_core_says_which_setting_is_wrong(options, setting, reason):
    with pytest.raises(InvalidArgumentError) as caught:
        bare(**{"strategy": "ring", "workers": 2, **options}).run()
    assert caught.value.setting == setting
    assert caught.value.reason.startswith(reason)


def test_a_scenario_has_no_other_options():
    with pytest.raises(TypeError, match="a scenario has no option 'speed'"):
        bare("ring", 2, speed=3.0)


def test_the_core_says_which_place_of_a_document_is_wrong():
    with pytest.raises(InvalidArgumentError) as caught:
        paceline.load_cluster("p3.16xlarge").replace(degraded=[_core.Degraded("node1", 2.0)])
    assert caught.value.place == "degraded[0].factor"
    assert caught.value.reason == "cluster: degraded[0].factor: must be 0-1, not 2"
    assert caught.value.remedy == '"factor": 1'


# The same by flag, variable, keyword and key.

TEXTS = st.one_of(
    st.sampled_from(
        ["", "1", "0", "-1", "2", "none", "whole", "per-worker", "512KiB", "4Mb", "25MB", "25Gbps", "25GBps", "10us"]
    ),
    st.sampled_from(
        ["ring", "ps", "rnig", "butterfly", "all", "step", "layer", "root", "block", "even", "fifo", "fluid"]
    ),
    st.sampled_from(["true", "no", "1e3", "nan", "inf", "2.5", "1,2", "ring,ps", "ring,,ps", "2,2", "9" * 30]),
    st.text(max_size=8),
).filter(lambda text: "\x00" not in text and not text.startswith("-"))


def outcome(make):
    """The result, or the error's text except for its source and the spelling of other settings."""
    try:
        return make()
    except InvalidArgumentError as error:
        return (error.setting, re.sub(r"--([a-z-]+)", lambda flag: flag[1].replace("-", "_"), error.reason))


def by_flag(place, name, text):
    """The sweep that `paceline simulate` makes."""
    setting = SETTINGS[name]
    made = []

    def callback(traces, timeline, plot, **options):
        for output in ("explain", "as_json", "csv", "everything", "configs", "plan_json"):
            options.pop(output)
        made.append(Sweep.of(list(traces), options, place, "flag"))

    taken = click.Command("simulate", params=simulate.params, callback=callback)
    taken.main([f"{setting.flag}={text}", "--", TINY], standalone_mode=False)
    return made[0]


def described(sweep):
    """The scenarios of a sweep."""
    return [
        (
            one.trace,
            one.cluster,
            one.strategy,
            one.workers,
            dict(one.options),
        )
        for one in prepare(sweep).scenarios
    ]


TEXTUAL = [
    name
    for name in (setting.name for setting in of_place("simulate"))
    if "report" in SETTINGS[name].uses and not SETTINGS[name].kind.is_switch
]


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(TEXTUAL), TEXTS)
def test_flag_key_and_keyword_make_the_same_scenarios(name, text):
    by_key = outcome(lambda: described(Sweep.of(TINY, {name: text}, "report", "key", where="x.toml: chapter 1")))
    assert outcome(lambda: described(by_flag("simulate", name, text))) == by_key
    if SWEEP in SETTINGS[name].uses:
        assert outcome(lambda: described(Sweep.of(TINY, {name: text}, SWEEP))) == by_key


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(sorted(set(VARIABLES.values()) - {"secret_file"})), TEXTS.filter(bool))
def test_flag_variable_and_keyword_make_the_same_settings(name, text):
    variable = SETTINGS[name].variable
    made = outcome(lambda: Settings.from_environment({variable: text}))
    assert outcome(lambda: Settings.resolved({}, {name: text}, "flag")) == made
    assert outcome(lambda: Settings.from_environment({}, **{name: text})) == made


@pytest.mark.parametrize(
    ("given", "toml", "flags"),
    [
        (
            {"workers": [2, 4], "strategy": ["ring", "ps"]},
            "workers=[2,4]\nstrategy=['ring','ps']",
            "--workers 2,4 --strategy ring,ps",
        ),
        (
            {"bucket_size": 25_000_000, "overlap": False},
            "bucket_size='25MB'\noverlap=false",
            "--bucket-size 25MB --no-overlap",
        ),
        ({"chunk": 65536, "seed": None}, "chunk='64KiB'", "--chunk 64KiB"),
        (
            {"compute_speedup": 2, "iterations": 3},
            "compute_speedup=2\niterations=3",
            "--compute-speedup 2 --iterations 3",
        ),
        (
            {"bandwidth": "10Gbps", "latency": "5us"},
            "bandwidth='10Gbps'\nlatency='5us'",
            "--bandwidth 10Gbps --latency 5us",
        ),
    ],
)
def test_typed_values_mean_what_their_text_means(given, toml, flags):
    keyed = described(Sweep.of(TINY, tomllib.loads(toml), "report", "key"))
    params = simulate.make_context("simulate", [*flags.split(), "--", TINY]).params
    typed = {name: value for name, value in params.items() if name in SETTINGS}
    assert described(Sweep.of(TINY, typed, "simulate", "flag")) == keyed
    defaults = {"workers": list(SETTINGS["workers"].default)} if "workers" not in given else {}
    assert described(Sweep.of(TINY, given | defaults, SWEEP)) == keyed


def test_a_scenario_is_what_the_core_takes():
    """The command line's figure is Python's."""
    words = ["simulate", TINY, "--workers", "4", "--strategy", "ps", "--servers", "2", "--chunk", "64KiB", "--json"]
    words += ["--library", "none"]
    [printed] = json.loads(cli.call(*words).stdout)
    trace, cluster = paceline.load_trace(TINY), paceline.load_cluster()
    scenario = Scenario.of(trace, cluster, "ps", 4, servers=2, chunk="64KiB", pull=None)
    assert native(scenario).run() == bare("ps", 4, trace=TINY, servers=2, chunk=65536).run()
    assert json.loads(json.dumps(result_of(scenario).to_dict())) == printed
    changed = native(scenario.changed(chunk=None, workers=8))
    assert changed.run() == bare("ps", 8, trace=TINY, servers=2).run() != native(scenario).run()
    assert changed.run() == bare("ps", 8, trace=TINY, servers=1).replace(servers=2).run()
    with pytest.raises(InvalidArgumentError, match="servers: must be 1-60000, not 0"):
        Scenario.of(trace, cluster, "ps", 4, servers=0)


def test_no_place_is_unknown():
    assert set(PLACES) == {place for setting in ALL for place in setting.uses}
    assert set(FORECASTS) <= set(PLACES)
    with pytest.raises(InvalidArgumentError, match="try: chunk"):
        find("chunks")


def test_keywords_that_are_neither_settings_nor_fields_of_a_cluster():
    for call in (paceline.simulate, paceline.sweep):
        with pytest.raises(InvalidArgumentError, match=rf"paceline\.{call.__name__}: unknown option 'global_batch'"):
            call("resnet-50", workers=8, global_batch=64)
        with pytest.raises(InvalidArgumentError, match="try: bandwidth"):
            call("resnet-50", workers=8, bandwith="10Gbps")
    fields = {"nics_per_node": 2, "intra_link": "pcie", "gpus_per_node": 2}
    assert paceline.simulate("resnet-50", strategy="ring", workers=4, **fields).workers == 4


@pytest.mark.parametrize("setting", SETTINGS.values(), ids=list(SETTINGS))
def test_names_are_case_insensitive(setting):
    for place in (None, *setting.uses):
        kind = setting.kind_of(place)
        words = {*kind.choices, *(word for word in kind.words.removesuffix(",…").split("|") if word.isidentifier())}
        for word in filter(str.islower, words):
            assert kind.check(word.upper()) == kind.check(word)
    for name, value in (("strategy", "RING"), ("library", "DDP"), ("coordinator", "GS:4"), ("sharding", "Fsdp")):
        place = next(iter(SETTINGS[name].uses))
        assert SETTINGS[name].check(value, None, place) == SETTINGS[name].check(value.lower(), None, place)
