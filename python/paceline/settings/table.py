"""The table of settings: names, accepted values, default, help, and the commands and functions that take each one.

A `Setting` holds what is the same everywhere; a `Use` holds what differs for one command or function, such as the
default. Command-line flags, environment variables, Python keywords, the keys of a report and
docs/reference/settings.md are all derived from this table.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from paceline._internal import units
from paceline._internal.nearest import nearest
from paceline.errors import InvalidArgumentError, Source
from paceline.settings import kinds
from paceline.settings.kinds import Kind

_UNSET: Final[Any] = object()
_BY_NAME: Final = "--"
SEARCHED = "searched"
"""How the default of a setting begins that a command searches unless it is given."""


@dataclass(frozen=True, kw_only=True)
class Use:
    """Overrides for one command or function; None leaves the setting's own value."""

    kind: Kind | None = None
    default: Any = _UNSET
    default_words: str | None = None
    help: str | None = None
    required: bool = False
    also: str | None = None
    former: str = ""
    """A former flag of this command for it, which works, with a warning."""
    renamed: str = ""
    """The setting that the help has in its place; this one goes on working."""


@dataclass(frozen=True, kw_only=True)
class Setting:
    """One setting."""

    name: str
    """In Python, as a keyword; in TOML, as a key."""
    kind: Kind
    help: str
    """One line, for --help and the reference."""
    uses: Mapping[str, Use] = field(default_factory=dict)
    """By command or function."""
    default: Any = None
    default_words: str = ""
    """If there is no default value, what happens without one."""
    flag: str = _BY_NAME
    """In click's notation; empty if no command has one. By default the name's: `--bucket-size`."""
    also: str = ""
    """Another name for it, on the command line and in a report: `gpus` for `workers`."""
    variable: str = ""
    """The environment variable; empty if there is none."""
    section: str = ""
    """Its section in `paceline simulate --help`."""
    part: str = ""
    """What of a forecast it is about: `trace`, `cluster`, `coordinator`, `core` (options of a scenario) or `swept`."""
    is_secret: bool = False
    """It is never printed."""
    idle_with: Sequence[str] = ()
    """Transports with which it has no effect."""

    def __post_init__(self) -> None:
        """Derive the flag from the name."""
        if self.flag == _BY_NAME:
            object.__setattr__(self, "flag", f"--{self.name.replace('_', '-')}")

    def kind_of(self, place: str | None = None) -> Kind:
        """Return what `place`, a command or function, accepts."""
        return (self.uses[place].kind if place else None) or self.kind

    def help_of(self, place: str) -> str:
        """Return the help text in `place`."""
        return self.uses[place].help or self.help

    def default_of(self, place: str | None = None) -> Any:  # noqa: ANN401
        """Return the default in `place`; None if there is no default value."""
        use = self.uses[place] if place else Use()
        return self.default if use.default is _UNSET else use.default

    def default_text(self, place: str | None = None) -> str:
        """Return the default as text for people; empty if there is none."""
        use = self.uses[place] if place else Use()
        if use.default_words is not None:
            return use.default_words
        value = self.default_of(place)
        if value is None or (self.default_words and use.default is _UNSET):
            return self.default_words
        if isinstance(value, bool) and "/" in self.flag:
            return self.spelling(value).removeprefix("--")
        return ",".join(map(_shown, value)) if isinstance(value, tuple) else _shown(value)

    def also_of(self, place: str) -> str:
        """Return the other name in `place`."""
        also = self.uses[place].also
        return self.also if also is None else also

    def spelling(self, value: object = None) -> str:
        """Return the flag as typed for this value."""
        yes, _, no = self.flag.partition("/")
        return no if value is False and no else yes

    def source(self, kind: str, value: object = None, where: str = "") -> Source:
        """Return the source of a value: a `flag`, `variable`, `keyword` or `key`."""
        if kind == "flag":
            return Source("flag", self.spelling(value))
        if kind == "variable":
            return Source("variable", self.variable)
        return Source("keyword" if kind == "keyword" else "key", self.name, where)

    def check(self, value: object, source: Source | None = None, place: str | None = None) -> Any:  # noqa: ANN401
        """Check and convert a value. Raises InvalidArgumentError, which carries this setting and the source."""
        try:
            for word in [value] if isinstance(value, str) else value if isinstance(value, list | tuple) else []:
                if isinstance(word, str):
                    kinds.text(word)
            return self.kind_of(place).check(value)
        except InvalidArgumentError as error:
            raise (self._refused_list(value, place) or error).at(self.name, source) from None

    def _refused_list(self, value: object, place: str | None) -> InvalidArgumentError | None:
        """Return the error about text that is a list, where one value is expected."""
        if not self._is_list(value, place):
            return None
        return InvalidArgumentError(f"'{value!s:.80}' is a list, and one value is expected; {self._takers(place)}")

    def _is_list(self, value: object, place: str | None) -> bool:
        """Whether text that was refused is a list of values, each of which would be accepted."""
        kind = self.kind_of(place)
        takes_several = kind.is_list or kind.words.endswith(",…")
        if not isinstance(value, str) or "," not in value or takes_several:
            return False
        try:
            return all(kind.check(word.strip()) is not None for word in value.split(","))
        except InvalidArgumentError:
            return False

    def _takers(self, place: str | None) -> str:
        """Return which commands and functions take a list, or search the values by themselves."""
        takers = [_in_words(place) for place, use in self.uses.items() if (use.kind or self.kind).is_list]
        if takers:
            return f"{units.listed(takers)} take{'s' * (len(takers) == 1)} a list"
        searching = [it for it in self.uses if self.default_text(it).startswith(SEARCHED)]
        if place in searching:
            return "leave it out, and it is searched"
        others = [f", or leave it to {_in_words(it)}, which searches it" for it in searching]
        return f"no command takes a list of these: give one at a time{''.join(others)}"


def _in_words(place: str) -> str:
    """Return a command or function as users know it."""
    return place if place.startswith("paceline.") else f"`paceline {place}`"


def _shown(value: object) -> str:
    if isinstance(value, bool):
        return str(int(value))
    return f"{value:g}" if isinstance(value, float) else str(value)


def _lists(several: Use) -> dict[str, Use]:
    """Return uses: commands and sweeps take several values, where `paceline.simulate` takes one."""
    return dict.fromkeys(("simulate", "report", SWEEP), several)


def _in(*places: str, **own: Use) -> dict[str, Use]:
    """Return uses: `places` take a setting unchanged, `own` override it under the names in `_PLACES`."""
    return {place: Use() for place in places} | {_PLACES.get(name, name): use for name, use in own.items()}


SIMULATE, SWEEP, JOIN, EMULATE_RUN = "paceline.simulate", "paceline.sweep", "paceline.job.join", "emulate run"
RAY = "paceline.ray.RaySettings"
_PLACES = {
    "python": SIMULATE,
    "sweep": SWEEP,
    "join": JOIN,
    "emulate_run": EMULATE_RUN,
    "emulate_up": "emulate up",
    "emulate_check": "emulate check",
    "ray": RAY,
    "import_kineto": "import kineto",
    "import_chakra": "import chakra",
    "import_sends": "import sends",
    "export_chakra": "export chakra",
}
FORECASTS = ("simulate", "report", SIMULATE, SWEEP)
"""Commands and functions that take a scenario, or several."""
JOBS = ("run", EMULATE_RUN, JOIN)
PLACES = (
    *FORECASTS,
    "explore",
    "plan",
    "validate",
    "bench",
    "run",
    EMULATE_RUN,
    "replay",
    JOIN,
    RAY,
    "models",
    "advise",
    "record",
    "probe",
    "emulate up",
    "emulate check",
    "import kineto",
    "import chakra",
    "import sends",
    "export chakra",
)
OVER_MPI = ("mpi", "grpc+mpi")
"""Transports that send tensors through an MPI library."""
MOST_EMULATED = 250
"""Hosts of an emulated cluster."""
DEFAULT_WORKERS = (2, 4, 8, 16, 32, 64)
_STRATEGIES = Use(kind=kinds.STRATEGIES, default=("all",))
_SEVERAL_SERVERS = Use(kind=kinds.SEVERAL_SERVERS)
_TIMES = Use(kind=kinds.TIMES)
_SHARDINGS = Use(kind=kinds.SEVERAL_SHARDINGS)
_SEVERAL_WAYS = Use(kind=kinds.several(kinds.whole(1, 1024)))
_COMPRESSIONS = Use(kind=kinds.SEVERAL_COMPRESSIONS)
_SYNCS = Use(kind=kinds.several(kinds.SYNC_EVERY))
_BUCKET_SIZES = Use(kind=kinds.BUCKET_SIZES)
_LIBRARIES = Use(kind=kinds.LIBRARIES)
_ONE = Use(kind=kinds.WORKERS, default=None, default_words="required")
_SHRINK, _SCALE = kinds.factor("4 means a quarter of the bytes"), kinds.factor("4 means four times as long")
_HOSTS = Use(kind=kinds.whole(1, MOST_EMULATED), help="Worker hosts.", default=None, required=True, also="")
_HOST_RATE = Use(
    kind=kinds.RATE, help="NIC rate of each host, such as 500Mbps.", default=None, default_words="", required=True
)
_GPU_OF_A_RECORDING = Use(
    kind=kinds.TEXT, help="Of a recording: the published rate of this GPU: V100, A100, ….", renamed="gpu"
)
_COORDINATORS = Use(
    kind=kinds.COORDINATORS,
    help="Model how ranks coordinate ready tensors: negotiate, global-sleep, ….",
    default=("none",),
)

_WHAT, _CLUSTER, _HOW = "What is forecast", "The cluster", "How strategies work"
_MODEL = "Models from a configuration"
_SHARDING = "Sharding"
_COORDINATOR, _ITERATION = "The coordinator", "The iteration"

_ALL: tuple[Setting, ...] = (
    Setting(
        name="workers",
        also="gpus",
        kind=kinds.SEVERAL_WORKERS,
        help="Ranks that train, one per GPU.",
        default=DEFAULT_WORKERS,
        section=_WHAT,
        uses=_in(
            "simulate",
            "report",
            python=_ONE,
            sweep=Use(default=None, default_words="required"),
            validate=Use(help="Ranks, each on its own host.", default=(4,)),
            advise=Use(help="GPUs; the best configurations for each number.", default=None, default_words="required"),
            emulate_up=_HOSTS,
            emulate_run=_HOSTS,
            emulate_check=_HOSTS,
            export_chakra=Use(
                kind=kinds.whole(1, 100_000),
                help="Ranks: as many files are written.",
                default=None,
                required=True,
                also="",
            ),
        ),
    ),
    Setting(
        name="strategy",
        variable="PACELINE_STRATEGY",
        kind=kinds.JOB_STRATEGY,
        help="A name from `paceline list strategies`.",
        default_words="chosen by message size",
        section=_WHAT,
        uses=_in(
            *JOBS,
            simulate=_STRATEGIES,
            report=_STRATEGIES,
            python=Use(kind=kinds.STRATEGY, default_words="the library's"),
            sweep=_STRATEGIES,
            validate=_STRATEGIES,
            bench=Use(kind=kinds.several(kinds.STRATEGY), help="Strategies of the paceline engine, one row each."),
        ),
    ),
    Setting(
        name="library",
        kind=kinds.LIBRARY,
        help="Whose costs and habits are forecast (`paceline list libraries`); none: the bare schedule.",
        default_words="the trace's; ddp",
        section=_WHAT,
        uses=_in(SIMULATE, **_lists(_LIBRARIES)),
    ),
    Setting(
        name="servers",
        variable="PACELINE_SERVERS",
        kind=kinds.SERVERS,
        help="Parameter servers.",
        default=1,
        section=_WHAT,
        part="swept",
        uses=_in(
            JOIN,
            SIMULATE,
            **_lists(_SEVERAL_SERVERS),
            validate=Use(kind=kinds.SEVERAL_SERVERS, help="Parameter servers, each on its own host."),
            bench=Use(help="Parameter servers, on the first ranks' hosts."),
            run=Use(help="Parameter servers, each a separate process."),
            emulate_up=Use(
                kind=kinds.whole(1, MOST_EMULATED),
                help="Hosts for parameter servers.",
                default=None,
                default_words="none",
            ),
            emulate_run=Use(help="Parameter servers, each on its own host."),
        ),
    ),
    Setting(
        name="compute_speedup",
        kind=kinds.SPEEDUP,
        help="Divide all computation times by this factor.",
        default=1.0,
        section=_WHAT,
        part="swept",
        uses=_in(SIMULATE, **_lists(Use(kind=kinds.SPEEDUPS))),
    ),
    Setting(
        name="device",
        kind=kinds.choice(("cpu", "cuda")),
        help="Where to run.",
        section=_WHAT,
        part="trace",
        uses=_in(
            simulate=_GPU_OF_A_RECORDING,
            report=_GPU_OF_A_RECORDING,
            python=_GPU_OF_A_RECORDING,
            sweep=_GPU_OF_A_RECORDING,
            record=Use(help="With --model: device to run on.", default_words="cpu"),
            bench=Use(
                help="Where engines of torch compute; ranks may share a GPU.", default_words="cpu; with ddp-nccl cuda"
            ),
            import_kineto=Use(
                kind=kinds.TEXT, help="What it was recorded on.", default_words="the GPU's name in the file"
            ),
            import_sends=Use(kind=kinds.TEXT, help="What it was recorded on."),
        ),
    ),
    Setting(
        name="samples_per_s",
        kind=kinds.RATE_OF_SAMPLES,
        help="Rescale the trace to this rate, as measured on one device.",
        section=_WHAT,
        part="trace",
        uses=_in("simulate", "report", SIMULATE, SWEEP),
    ),
    Setting(
        name="batch",
        kind=kinds.BATCH,
        help="Samples per worker and iteration: 1024, or 1k.",
        default_words="the trace's; of a model 1",
        section=_WHAT,
        part="trace",
        uses=_in(
            "simulate",
            "report",
            SIMULATE,
            SWEEP,
            models=Use(help="Samples of an iteration.", default_words="1"),
            advise=Use(help="Samples of a pass.", default_words="searched"),
            record=Use(help="Samples per step.", default_words="32; a script's own"),
            import_kineto=Use(help="Samples per worker and step.", default_words="the input's"),
            import_chakra=Use(help="Samples per worker and step.", default_words="the input's"),
            import_sends=Use(help="Samples per worker and iteration.", default_words="", required=True),
        ),
    ),
    Setting(
        name="dtype",
        kind=kinds.DTYPE,
        help="Element type of gradients on the wire; for a model, the precision of its computation.",
        default_words="the trace's; of a model bf16, or fp16",
        section=_WHAT,
        part="trace",
        uses=_in(
            "advise",
            "simulate",
            "report",
            SIMULATE,
            SWEEP,
            models=Use(
                kind=kinds.PRECISION, help="Precision of the computation.", default_words="bf16; fp16 without it"
            ),
            record=Use(
                kind=kinds.choice(("bf16", "fp16", "tf32", "fp32")),
                help="With --gpu: run operators in it, as autocast does.",
                default_words="the script's own",
            ),
            import_chakra=Use(kind=kinds.GRADIENT_DTYPE, help="Dtype of the gradients.", default_words="float32"),
            import_sends=Use(kind=kinds.GRADIENT_DTYPE, help="Dtype of the gradients.", default="float32"),
        ),
    ),
    Setting(
        name="gpu",
        kind=kinds.TEXT,
        help="GPU: computes a model's times (`paceline list gpus`), or takes a recording's published rate on it.",
        section=_MODEL,
        part="trace",
        uses=_in(
            *("advise", "simulate", "report", SIMULATE, SWEEP, "models"),
            explore=Use(help="GPU for the initial position of a model's sliders.", default_words="h100"),
            record=Use(help="Estimate the times on this GPU (`paceline list gpus`); needs no GPU.", former="--on"),
        ),
    ),
    Setting(
        name="seq",
        kind=kinds.SEQUENCE,
        help="Tokens of a sequence: 8192, or 8k.",
        default_words="the model's context, at most 8192",
        section=_MODEL,
        part="trace",
        uses=_in("advise", "simulate", "report", SIMULATE, SWEEP, "models"),
    ),
    Setting(
        name="checkpointing",
        kind=kinds.CHECKPOINTING,
        help="Activations that are recomputed in the backward pass.",
        default_words="none",
        section=_MODEL,
        part="trace",
        uses=_in(
            "simulate",
            "report",
            SIMULATE,
            SWEEP,
            "models",
            advise=Use(kind=kinds.several(kinds.CHECKPOINTING), default_words="searched"),
        ),
    ),
    Setting(
        name="attention",
        kind=kinds.ATTENTION,
        help="Whether attention is one kernel that stores no scores.",
        default_words="flash",
        section=_MODEL,
        part="trace",
        uses=_in("advise", "simulate", "report", SIMULATE, SWEEP, "models"),
    ),
    Setting(
        name="kernels",
        kind=kinds.KERNELS,
        help="How far pointwise operators and the optimizer are fused.",
        default_words="fused",
        section=_MODEL,
        part="trace",
        uses=_in("advise", "simulate", "report", SIMULATE, SWEEP, "models"),
    ),
    Setting(
        name="tensor_parallel",
        kind=kinds.whole(1, 1024),
        help="GPUs that share every layer of a model, inside a node; --gpus counts all of them.",
        default_words="1",
        section=_MODEL,
        part="trace",
        uses=_in("simulate", "report", SIMULATE, SWEEP, advise=_SEVERAL_WAYS),
    ),
    Setting(
        name="expert_parallel",
        kind=kinds.whole(1, 4096),
        help="GPUs that have a part each of a mixture's experts, of several data-parallel ranks.",
        default_words="1",
        section=_MODEL,
        part="trace",
        uses=_in("simulate", "report", SIMULATE, SWEEP, advise=_SEVERAL_WAYS),
    ),
    Setting(
        name="context_parallel",
        kind=kinds.whole(1, 1024),
        help="Data-parallel ranks that share every sample, each with a part of its tokens.",
        default_words="1",
        section=_MODEL,
        part="trace",
        uses=_in("simulate", "report", SIMULATE, SWEEP, advise=_SEVERAL_WAYS),
    ),
    Setting(
        name="pipeline_parallel",
        kind=kinds.whole(1, 1024),
        help="Stages of a pipeline (1F1B); --gpus counts all of their GPUs.",
        default_words="1",
        section=_MODEL,
        part="trace",
        uses=_in("simulate", "report", SIMULATE, SWEEP, advise=_SEVERAL_WAYS),
    ),
    Setting(
        name="microbatches",
        kind=kinds.whole(1, 100_000),
        help="Microbatches of an iteration of a pipeline, each of --batch samples.",
        default_words="required with a pipeline",
        section=_MODEL,
        part="trace",
        uses=_in("simulate", "report", SIMULATE, SWEEP),
    ),
    Setting(
        name="virtual_stages",
        kind=kinds.whole(1, 1024),
        help="Parts of the model that each stage of a pipeline has: the interleaved schedule.",
        default_words="1",
        section=_MODEL,
        part="trace",
        uses=_in("simulate", "report", SIMULATE, SWEEP, advise=_SEVERAL_WAYS),
    ),
    Setting(
        name="add_module",
        kind=kinds.Kind("KIND:N", kinds.text),
        help="Add N compute-heavy or network-heavy modules: compute:25 or network:25.",
        section=_WHAT,
        uses=_in("simulate", "report"),
    ),
    Setting(
        name="cluster",
        kind=kinds.NAMED_FILE,
        help="Cluster, by name or file; other options override its fields.",
        default="flat",
        section=_CLUSTER,
        uses=_in(
            *FORECASTS,
            explore=Use(kind=kinds.TEXT, help="Built-in cluster for the initial position of a trace's sliders."),
            validate=Use(help="With --here: the cluster to simulate.", default=None, default_words="probe first"),
            bench=Use(help="Cluster for the forecast.", default=None),
            advise=Use(default=None, default_words="nodes of the GPU; flat"),
        ),
    ),
    Setting(
        name="bandwidth",
        kind=kinds.RATES,
        help="Bandwidth of a node in each direction, shared by its GPUs; in a fabric of rails, of a GPU.",
        default_words="the cluster's; 25Gbps for flat",
        section=_CLUSTER,
        uses=_in(
            "simulate",
            "report",
            SWEEP,
            python=Use(kind=kinds.RATE),
            validate=Use(help="Bandwidth of a host.", default=("500Mbps",)),
            bench=Use(kind=kinds.RATE, help="Bandwidth of a host, for the forecast.", default_words="the emulated one"),
            advise=Use(kind=kinds.RATE, former="--network"),
            emulate_up=_HOST_RATE,
            emulate_run=_HOST_RATE,
            emulate_check=_HOST_RATE,
        ),
    ),
    Setting(
        name="channel",
        kind=kinds.CHANNEL,
        help="What carries messages between nodes; none: they get the whole bandwidth.",
        default_words="the cluster's; for flat tcp up to 25 Gbit/s, rdma above",
        section=_CLUSTER,
        uses=_in("advise", *FORECASTS),
    ),
    Setting(
        name="latency",
        kind=kinds.TIME,
        help="One-way latency between two nodes.",
        default_words="the cluster's; the channel's for flat",
        section=_CLUSTER,
        uses=_in(
            "advise",
            *FORECASTS,
            **_lists(_TIMES),
            validate=Use(help="Latency of the simulated network.", default_words="none"),
        ),
    ),
    Setting(
        name="message_overhead",
        kind=kinds.TIME,
        help="Fixed cost of a message at its sender.",
        default_words="the cluster's; the channel's for flat",
        part="cluster",
        uses=_in(
            SIMULATE, SWEEP, validate=Use(help="Fixed cost of a simulated message at its sender.", default_words="none")
        ),
    ),
    Setting(
        name="gpus_per_node",
        kind=kinds.whole(1, 1024),
        help="Ranks that share one NIC.",
        default_words="the cluster's; else those of the GPU's nodes, 8 if they are unknown; 1 without a GPU",
        section=_CLUSTER,
        part="cluster",
        uses=_in("advise", *FORECASTS),
    ),
    Setting(
        name="intra_bandwidth",
        kind=kinds.RATE,
        help="Bandwidth of a rank inside its node, in each direction.",
        default_words="the cluster's; 100Gbps for flat",
        section=_CLUSTER,
        part="cluster",
        uses=_in("advise", *FORECASTS),
    ),
    Setting(
        name="stragglers",
        flag="--straggler",
        kind=kinds.STRAGGLERS,
        help="Ranks that compute slowly: 13:1.2 makes rank 13 take 1.2 times as long.",
        default_words="the cluster's; none for flat",
        section=_CLUSTER,
        part="cluster",
        uses=_in("advise", *FORECASTS),
    ),
    Setting(
        name="degraded",
        flag="--degrade",
        kind=kinds.DEGRADED,
        help="Links that are slow, and what is left of their rates: leaf0-spine1:0.5; 0 removes a link.",
        default_words="the cluster's; none for flat",
        section=_CLUSTER,
        part="cluster",
        uses=_in(*FORECASTS),
    ),
    Setting(
        name="network",
        kind=kinds.NETWORK,
        help="How flows share a link.",
        default="fifo",
        section=_CLUSTER,
        part="core",
        uses=_in(*FORECASTS, "validate"),
    ),
    Setting(
        name="bucket_size",
        kind=kinds.BUCKET_SIZE,
        help="Fuse gradients into buckets of up to SIZE; none: no fusion.",
        default_words="the library's",
        section=_HOW,
        part="swept",
        uses=_in(
            SIMULATE,
            "advise",
            **_lists(_BUCKET_SIZES),
            validate=Use(kind=kinds.typed(kinds.BUCKET_SIZE), default="none"),
            replay=Use(default="none"),
            bench=Use(kind=kinds.SIZE, default_words="each engine's own", former="--fusion"),
            export_chakra=Use(
                kind=kinds.BUCKET_SIZE,
                help="All-reduce gradients in buckets of up to SIZE.",
                default=25_000_000,
                default_words="25MB",
            ),
            plan=Use(kind=kinds.typed(kinds.BUCKET_SIZE), help="Bucket size; none: no fusion.", default="64MB"),
        ),
    ),
    Setting(
        name="chunk",
        variable="PACELINE_CHUNK",
        kind=kinds.CHUNK,
        help="Cut buckets into messages of this size.",
        default_words="whole; per-worker for rings; 512 KiB for tree",
        section=_HOW,
        part="core",
        uses=_in(*FORECASTS, *JOBS),
    ),
    Setting(
        name="placement",
        variable="PACELINE_PLACEMENT",
        kind=kinds.PLACEMENT,
        help='Assignment of tensors to servers; FILE is JSON: {"tensor": server}.',
        default="round-robin",
        section=_HOW,
        part="core",
        uses=_in(
            "simulate",
            "report",
            *JOBS,
            python=Use(kind=kinds.PLACEMENT_OR_SERVERS),
            sweep=Use(kind=kinds.PLACEMENT_OR_SERVERS),
        ),
    ),
    Setting(
        name="distribution",
        variable="PACELINE_DISTRIBUTION",
        kind=kinds.DISTRIBUTION,
        help="Order in which servers send: tensor by tensor or worker by worker.",
        default="round-robin",
        section=_HOW,
        part="core",
        uses=_in(*FORECASTS, *JOBS),
    ),
    Setting(
        name="pull",
        variable="PACELINE_PULL",
        kind=kinds.PULL,
        help="Whether the forward pass waits for parameters layer by layer, or for all at its start.",
        default="step",
        default_words="the library's: step; layer for none and TensorFlow",
        section=_HOW,
        part="core",
        uses=_in(*FORECASTS, *JOBS, replay=Use(default="layer", default_words="layer: the bare schedule")),
    ),
    Setting(
        name="inside",
        variable="PACELINE_INSIDE",
        kind=kinds.INSIDE,
        help="Algorithm inside the node.",
        default="ring",
        section=_HOW,
        part="core",
        uses=_in(*FORECASTS, *JOBS),
    ),
    Setting(
        name="sharding",
        kind=kinds.SHARDING,
        help="What is sharded: none, zero1, zero2, zero3 (fsdp), hsdp; in groups hsdp:8, zero1:8, zero2:8.",
        default_words="none",
        section=_SHARDING,
        part="swept",
        uses=_in(
            *(SIMULATE, "replay"),
            **_lists(_SHARDINGS),
            validate=replace(_SHARDINGS, help="Replay and simulate sharded iterations: zero1, zero3, hsdp, …."),
            advise=Use(kind=kinds.SEVERAL_SHARDINGS, default_words="searched"),
        ),
    ),
    Setting(
        name="reshard_after_forward",
        kind=kinds.RESHARD,
        help="Free a gathered unit after its forward pass, keep it, or keep it sharded over N ranks.",
        default_words="yes",
        section=_SHARDING,
        part="core",
        uses=_in(*FORECASTS, "replay"),
    ),
    Setting(
        name="prefetch",
        kind=kinds.whole(0, 10_000),
        help="Units that are gathered ahead in the forward pass.",
        default_words="1; with zero1 and zero2, parameters are gathered in the optimizer's step",
        section=_SHARDING,
        part="core",
        uses=_in("advise", *FORECASTS, "replay"),
    ),
    Setting(
        name="accumulate",
        kind=kinds.whole(1, 10_000),
        help="Passes through the model before the optimizer's step, each of --batch samples.",
        default_words="1",
        section=_SHARDING,
        part="core",
        uses=_in(*FORECASTS, "replay", advise=Use(default_words="searched with --global-batch; 1")),
    ),
    Setting(
        name="accumulate_sync",
        flag="--accumulate-sync/--no-accumulate-sync",
        kind=kinds.SWITCH,
        help="Exchange gradients after every pass, or only after the last one.",
        default_words="every pass if gradients are sharded",
        section=_SHARDING,
        part="core",
        uses=_in(*FORECASTS, "replay"),
    ),
    Setting(
        name="unit",
        kind=kinds.Kind("PATTERN", kinds.text),
        help="Names of layers that form a unit, such as transformer.h.*; what matches no unit is the root.",
        default_words="numbered blocks",
        section=_SHARDING,
        part="core",
        uses=_in("advise", *FORECASTS, "replay"),
    ),
    Setting(
        name="param_dtype",
        kind=kinds.ONE_DTYPE,
        help="Element type of parameters, in which they are gathered; bf16, fp16 and fp32 are accepted, too.",
        default_words="the trace's",
        section=_SHARDING,
        part="core",
        uses=_in("advise", *FORECASTS, "replay"),
    ),
    Setting(
        name="reduce_dtype",
        kind=kinds.ONE_DTYPE,
        help="Element type in which gradients are reduced; bf16, fp16 and fp32 are accepted, too.",
        default_words="the trace's",
        section=_SHARDING,
        part="core",
        uses=_in("advise", *FORECASTS, "replay"),
    ),
    Setting(
        name="optimizer",
        kind=kinds.OPTIMIZER,
        help="Optimizer, for the memory of its states.",
        default_words="adam",
        section=_SHARDING,
        part="core",
        uses=_in("advise", *FORECASTS),
    ),
    Setting(
        name="compression",
        kind=kinds.COMPRESSION,
        help="How gradients are compressed: none, fp16, bf16, int8, powersgd:RANK, topk:DENSITY.",
        default_words="none",
        section=_SHARDING,
        part="swept",
        uses=_in(
            *(SIMULATE, "replay"),
            **_lists(_COMPRESSIONS),
            validate=replace(_COMPRESSIONS, help="Replay and simulate compressed gradients: int8, powersgd:4, …."),
            probe=Use(
                kind=kinds.MEASURED_COMPRESSIONS,
                help="Also measure what compressing takes: fp16, int8, powersgd:RANK, …; needs torch.",
            ),
        ),
    ),
    Setting(
        name="sync_every",
        kind=kinds.SYNC_EVERY,
        help="Iterations between two exchanges of parameters (local SGD, DiLoCo); 1: gradients, in each.",
        default_words="1",
        section=_SHARDING,
        part="swept",
        uses=_in(*(SIMULATE, "replay"), **_lists(_SYNCS)),
    ),
    Setting(
        name="memory",
        kind=kinds.MEMORY,
        help="Memory of a GPU: says whether the job fits.",
        default_words="that of --gpu",
        section=_SHARDING,
        part="core",
        uses=_in("advise", *FORECASTS),
    ),
    Setting(
        name="coordinator",
        variable="PACELINE_COORDINATOR",
        kind=kinds.COORDINATOR,
        help="How ranks of hvd jobs agree on the order of tensors.",
        default_words="graph; negotiate with servers",
        section=_COORDINATOR,
        part="coordinator",
        uses=_in(
            *JOBS,
            simulate=_COORDINATORS,
            report=_COORDINATORS,
            python=replace(_COORDINATORS, kind=kinds.ONE_COORDINATOR, default="none"),
            sweep=_COORDINATORS,
            bench=Use(help="Coordinator of the paceline engine, with its DistributedOptimizer.", default_words="DDP"),
        ),
    ),
    Setting(
        name="coordinator_constants",
        kind=kinds.CONSTANTS,
        help="summit, horovod, or JSON that overrides constants of docs/explanation/coordinator-model.md.",
        default_words="summit on summit, else horovod",
        section=_COORDINATOR,
        part="coordinator",
        uses=_in(*FORECASTS),
    ),
    Setting(
        name="barrier",
        flag="--barrier/--no-barrier",
        kind=kinds.SWITCH,
        help="All workers start an iteration together.",
        default=True,
        section=_ITERATION,
        part="core",
        uses=_in(*FORECASTS, replay=Use(help="All ranks start an iteration together.")),
    ),
    Setting(
        name="overlap",
        flag="--overlap/--no-overlap",
        kind=kinds.SWITCH,
        help="Send gradients during the backward pass.",
        default=True,
        section=_ITERATION,
        part="core",
        uses=_in(*FORECASTS, "replay"),
    ),
    Setting(
        name="iterations",
        kind=kinds.whole(1, 100_000),
        help="Iterations to measure.",
        default_words="1; 2 without the barrier",
        section=_ITERATION,
        part="core",
        uses=_in(*FORECASTS, replay=Use(help="Iterations to measure.", default=10)),
    ),
    Setting(
        name="seed",
        kind=kinds.SEED,
        help="Seed of the cluster's jitter.",
        default=0,
        section=_ITERATION,
        part="core",
        uses=_in(*FORECASTS, bench=Use(help="Seed of weights and images.", default=1)),
    ),
    Setting(
        name="executor",
        kind=kinds.EXECUTOR,
        help="Where the scenarios of a sweep run.",
        default="local",
        section=_ITERATION,
        uses=_in("simulate", SWEEP),
    ),
    Setting(
        name="critical_path",
        flag="",
        kind=kinds.SWITCH,
        help="Compute the critical path, which takes a fifth of the run time.",
        default=True,
        part="core",
        uses=_in(SIMULATE, SWEEP),
    ),
    Setting(
        name="detail",
        kind=kinds.SWITCH,
        help="List the busy time of every worker and link.",
        default=False,
        part="core",
        uses=_in(
            SIMULATE, SWEEP, simulate=Use(help="With --json: add the busy time of every worker and link.", default=None)
        ),
    ),
    # Only of jobs.
    Setting(
        name="transport",
        variable="PACELINE_TRANSPORT",
        kind=kinds.TRANSPORT,
        help="Transport between ranks (docs/how-to/grpc.md, docs/how-to/mpi.md).",
        default="auto",
        uses=_in(*JOBS, bench=Use(help="Transport of the paceline engine.")),
    ),
    Setting(
        name="mpi_library",
        flag="",
        variable="PACELINE_MPI_LIBRARY",
        kind=kinds.MPI_LIBRARY,
        help="An MPI library, or its folder (docs/how-to/mpi.md).",
        default_words="the launcher's",
        idle_with=("auto", "shm", "tcp", "grpc", "grpc+tcp"),
        uses=_in(JOIN),
    ),
    Setting(
        name="cuda_library",
        flag="",
        variable="PACELINE_CUDA_LIBRARY",
        kind=kinds.CUDA_LIBRARY,
        help="The library of a CUDA driver (docs/how-to/cuda.md).",
        default_words="libcuda.so.1",
        uses=_in(JOIN),
    ),
    Setting(
        name="cuda",
        variable="PACELINE_CUDA",
        kind=kinds.CUDA,
        help="Carrier of CUDA tensors: NCCL, strategies on devices (ipc) or host, or MPI (docs/how-to/cuda.md).",
        default="auto",
        uses=_in(*JOBS),
    ),
    Setting(
        name="cuda_pointer_cache",
        flag="",
        variable="PACELINE_CUDA_POINTER_CACHE",
        kind=kinds.SWITCH,
        help="Remember handles of device memory, and keep others' memory open (docs/how-to/cuda.md).",
        default=True,
        uses=_in(JOIN),
    ),
    Setting(
        name="nccl_library",
        flag="",
        variable="PACELINE_NCCL_LIBRARY",
        kind=kinds.NCCL_LIBRARY,
        help="The library of NCCL (docs/how-to/cuda.md).",
        default_words="torch's, or libnccl.so.2",
        uses=_in(JOIN),
    ),
    Setting(
        name="streams",
        variable="PACELINE_STREAMS",
        kind=kinds.whole(1, kinds.MOST_STREAMS),
        help="TCP connections between each pair of ranks.",
        default=1,
        idle_with=("shm", "grpc", *OVER_MPI),
        uses=_in(*JOBS),
    ),
    Setting(
        name="multicast",
        variable="PACELINE_MULTICAST",
        kind=kinds.MULTICAST,
        help="Use IP multicast for data that many ranks receive; one group per job, such as 239.77.0.0:47700.",
        default_words="unicast",
        idle_with=("shm", "grpc", *OVER_MPI),
        uses=_in(*JOBS),
    ),
    Setting(
        name="tls",
        flag="--tls/--no-tls",
        variable="PACELINE_TLS",
        kind=kinds.SWITCH,
        help="Encrypt gRPC.",
        default_words="on if other hosts can connect",
        idle_with=("auto", "shm", "tcp", "mpi"),
        uses=_in(*JOBS),
    ),
    Setting(
        name="single_copy",
        flag="",
        variable="PACELINE_SINGLE_COPY",
        kind=kinds.SWITCH,
        help="Let ranks on one host read each other's memory.",
        default=True,
        idle_with=("tcp", "grpc", "grpc+tcp", *OVER_MPI),
        uses=_in(JOIN),
    ),
    Setting(
        name="timeout_s",
        flag="--timeout",
        variable="PACELINE_TIMEOUT",
        kind=kinds.SECONDS,
        help="Seconds without progress after which the job fails.",
        default=1800.0,
        uses=_in(
            *JOBS,
            ray=Use(help="Seconds for actors to start and answer, and for ranks to find each other.", default=300.0),
        ),
    ),
    Setting(
        name="placement_group_timeout_s",
        flag="",
        kind=kinds.SECONDS,
        help="Seconds for Ray to find room for the actors.",
        default=100.0,
        uses=_in(RAY),
    ),
    Setting(
        name="grace_s",
        flag="--grace",
        kind=kinds.SECONDS,
        help="Shutdown grace period of the other ranks after a failure, in seconds.",
        default=5.0,
        uses=_in("run", EMULATE_RUN, RAY),
    ),
    Setting(
        name="nics",
        flag="",
        kind=kinds.NICS,
        help="The network that all nodes have: an interface (eth0) or a subnet (10.0.0.0/24).",
        default_words="Ray's",
        uses=_in(RAY),
    ),
    Setting(
        name="start_timeout_s",
        flag="",
        variable="PACELINE_START_TIMEOUT",
        kind=kinds.SECONDS,
        help="Seconds that ranks wait for each other at startup.",
        default_words="as `timeout_s`, at least 60; in elastic jobs 60",
        uses=_in(JOIN),
    ),
    Setting(
        name="interface",
        variable="PACELINE_INTERFACE",
        kind=kinds.INTERFACE,
        help="Network between ranks: an interface, a subnet (10.0.0.0/24), or an address of this machine.",
        default_words="loopback; on several hosts the one towards rank 0",
        uses=_in("run", JOIN),
    ),
    Setting(
        name="secret",
        flag="",
        variable="PACELINE_SECRET",
        kind=kinds.SECRET,
        help="Secret that all ranks share; at least 16 characters.",
        default_words="none; a random one under `paceline run`",
        is_secret=True,
        uses=_in(JOIN),
    ),
    Setting(
        name="secret_file",
        flag="",
        variable="PACELINE_SECRET_FILE",
        kind=kinds.SECRET_FILE,
        help="File that holds the secret, readable only by its owner.",
        uses=_in(JOIN),
    ),
    Setting(
        name="rendezvous",
        flag="",
        variable="PACELINE_RENDEZVOUS",
        kind=kinds.RENDEZVOUS,
        help="Address on which rank 0 listens; `paceline run` sets it.",
        default_words="none; the launcher's",
        idle_with=OVER_MPI,
        uses=_in(JOIN),
    ),
    Setting(
        name="timeline",
        variable="PACELINE_TIMELINE",
        kind=kinds.NEW_FILE,
        help="Record a timeline of all ranks, for `paceline doctor`.",
        uses=_in(*JOBS),
    ),
    Setting(
        name="as_gloo",
        variable="PACELINE_AS_GLOO",
        kind=kinds.SWITCH,
        help='Run process groups of the backend "gloo" on Paceline, for trainers that hard-code it.',
        default=False,
        uses=_in("run", EMULATE_RUN),
    ),
    Setting(
        name="verbose",
        variable="PACELINE_VERBOSE",
        kind=kinds.SWITCH,
        help="Print which rank runs where, and which strategies were chosen.",
        default=False,
        uses=_in(*JOBS),
    ),
    # Only of commands: of recordings, measurements and the search of `advise`.
    Setting(
        name="model",
        kind=kinds.TEXT,
        help="A torchvision classification model, on random images.",
        uses=_in("record", bench=Use(help="A torchvision model, or mlp or cnn.", default_words="resnet50")),
    ),
    Setting(
        name="name",
        kind=kinds.PRINTABLE,
        help="The trace's name.",
        uses=_in(
            record=Use(default_words="the model's"),
            import_kineto=Use(default_words="the first file's"),
            import_chakra=Use(default_words="the file's"),
            import_sends=Use(required=True),
        ),
    ),
    Setting(
        name="warmup",
        kind=kinds.whole(0, 100_000),
        help="Steps before the recorded ones.",
        default_words="3; with --gpu: 2",
        uses=_in(
            "record", replay=Use(kind=kinds.whole(1, 1000), help="Iterations before the measured ones.", default=2)
        ),
    ),
    Setting(
        name="steps",
        kind=kinds.whole(1, 100_000),
        help="Steps to record; the trace has their medians.",
        default_words="10; with --gpu: 1, as all are alike",
        uses=_in("record"),
    ),
    Setting(
        name="threads",
        kind=kinds.whole(1, 100_000),
        help="With --model: CPU threads.",
        default_words="torch's",
        uses=_in("record"),
    ),
    Setting(
        name="image_size",
        kind=kinds.whole(1, 100_000),
        help="With --model: pixels.",
        default_words="224; inception_v3: 299",
        uses=_in(
            "record",
            bench=Use(help="Image height and width in pixels.", default_words="224; mlp, cnn: 32; inception_v3: 299"),
        ),
    ),
    Setting(
        name="stop_when_recorded",
        kind=kinds.SWITCH,
        help="End the script as soon as the trace is complete.",
        default=False,
        uses=_in("record"),
    ),
    Setting(
        name="forward",
        kind=kinds.DURATION,
        help="Duration of the forward pass, such as 176ms.",
        uses=_in(
            import_chakra=Use(help="Duration of the forward pass, if the nodes' names do not tell."),
            import_sends=Use(required=True),
        ),
    ),
    Setting(
        name="repeats",
        kind=kinds.whole(1, 1000),
        help="Repeats of each transfer.",
        default_words="5; 3 with --quick",
        uses=_in(
            "probe",
            validate=Use(help="Iterations of each cell."),
            emulate_check=Use(help="Measurements; the median counts.", default=5),
        ),
    ),
    Setting(
        name="racks",
        kind=kinds.whole(1, MOST_EMULATED),
        help="Racks that the workers are divided among.",
        default=1,
        uses=_in("emulate up", EMULATE_RUN, validate=Use(help="Racks among which hosts are divided.")),
    ),
    Setting(
        name="realtime",
        flag="--realtime/--no-realtime",
        kind=kinds.SWITCH,
        help="Run ranks under SCHED_FIFO where permitted.",
        default=True,
        uses=_in("emulate up", EMULATE_RUN, "emulate check", "validate"),
    ),
    Setting(
        name="shrink",
        kind=_SHRINK,
        help="Divide tensor sizes by this.",
        default=1.0,
        uses=_in("replay", validate=Use(kind=kinds.or_auto(_SHRINK), default=None, default_words="auto")),
    ),
    Setting(
        name="scale",
        kind=_SCALE,
        help="Multiply times by this.",
        default=1.0,
        uses=_in("replay", validate=Use(kind=kinds.or_auto(_SCALE), default=None, default_words="auto")),
    ),
    Setting(
        name="global_batch",
        kind=kinds.GLOBAL_BATCH,
        help="Samples of an iteration of all GPUs: 1024, or 1k.",
        default_words="free",
        uses=_in("advise"),
    ),
    Setting(
        name="objective",
        kind=kinds.choice(("throughput", "cost")),
        help="What is best among several numbers of GPUs.",
        default="throughput",
        uses=_in("advise"),
    ),
    Setting(
        name="price",
        kind=kinds.MONEY,
        help="Price of a GPU for an hour: adds the cost of a billion tokens.",
        uses=_in("advise"),
    ),
    Setting(
        name="mtbf",
        kind=kinds.LONG_TIME,
        help="Mean time to failure of the whole job, such as 8h: adds goodput.",
        uses=_in("advise"),
    ),
    Setting(
        name="checkpoint_seconds",
        kind=kinds.POSITIVE_SECONDS,
        help="For which training waits for a checkpoint.",
        uses=_in("advise"),
    ),
    Setting(
        name="restart_seconds",
        kind=kinds.number(0, 30 * 86_400.0, "a number of seconds from 0 to 30 days", "SECONDS"),
        help="From a failure until training goes on.",
        default_words="as long as a checkpoint",
        uses=_in("advise"),
    ),
    Setting(
        name="top",
        kind=kinds.whole(1, 1000),
        help="Rows for each number of GPUs.",
        default=5,
        uses=_in("advise"),
    ),
)
SETTINGS: Mapping[str, Setting] = {setting.name: setting for setting in _ALL}
"""By name."""
CORE: Sequence[str] = tuple(one.name for one in _ALL if one.part == "core")
"""Options of every scenario of a sweep."""
SWEPT: Sequence[str] = tuple(
    one.name for one in _ALL if SWEEP in one.uses and one.kind_of(SWEEP).is_list and one.part in ("", "swept")
)
"""Those of which a sweep takes several values."""
LEAST_START_S = 60.0
"""How long ranks wait for each other at the start, at least, if that is not given."""
CLUSTER_FIELDS: Mapping[str, str] = {
    "name": "str",
    "provenance": "str",
    "efficiency": "float",
    "stream_bandwidth": "str",
    "node_contention": "float",
    "nics_per_node": "int",
    "intra_link": 'Literal["nvswitch", "nvlink", "pcie"]',
    "mesh": "dict[str, Any]",
    "intra_latency": "str",
    "host_bandwidth": "str",
    "reduction_bandwidth": "str",
    "racks": "dict[str, Any]",
    "fabric": "dict[str, Any]",
    "switch": "dict[str, Any]",
    "jitter": "dict[str, float]",
    "compression_costs": "Sequence[dict[str, Any]]",
}
"""Annotations of the fields of a cluster file that are no settings, and keywords of Python."""
VARIABLES: Mapping[str, str] = {one.variable: one.name for one in _ALL if one.variable and JOIN in one.uses}
"""Names, by environment variable, of the settings that a job reads when a rank joins it."""
ALIASES: Mapping[str, str] = {"timeout": "timeout_s", "start_timeout": "start_timeout_s"}
"""Former names of keywords."""


def of_place(place: str) -> list[Setting]:
    """Return the settings that a command or function takes, in order."""
    return [setting for setting in _ALL if place in setting.uses]


def by_current_names(
    place: str, given: Mapping[str, object], given_by: str = "flag", where: str = ""
) -> tuple[dict[str, object], dict[str, Source]]:
    """Return the values by the settings' own names, and the sources of those given by another name.

    Raises InvalidArgumentError if a setting is given under both of its names.
    """
    values, sources = dict(given), {}
    for setting in of_place(place):
        value = values.pop(setting.also, None) if setting.also_of(place) else None
        if value is None:
            continue
        source = replace(setting, name=setting.also, flag=f"--{setting.also}").source(given_by, value, where)
        if values.get(setting.name) is not None:
            raise InvalidArgumentError(
                f"means the same as {setting.source(given_by).name}; give one of them",
                setting=setting.name,
                source=source,
            )
        values[setting.name], sources[setting.name] = value, source
    return values, sources


def find(name: str, known: Sequence[str] | None = None) -> Setting:
    """Return the setting of this name among `known`. Raises InvalidArgumentError, which suggests a similar name."""
    candidates = list(SETTINGS if known is None else known)
    if name in candidates:
        return SETTINGS[name]
    near = nearest(name, candidates)
    raise InvalidArgumentError(f"unknown setting '{name[:80]}'" + (f"; did you mean {near}?" if near else ""))


def renamed(name: str) -> str:
    """Return the setting's current name; `name` may be a former one."""
    if name in ALIASES:
        warnings.warn(f"the setting {name} is now called {ALIASES[name]}", FutureWarning, stacklevel=4)
    return ALIASES.get(name, name)


def as_text(value: object) -> str:
    """Return a value as text for an environment variable."""
    return str(int(value)) if isinstance(value, bool) else f"{value:g}" if isinstance(value, float) else str(value)


def default(name: str) -> Any:  # noqa: ANN401 - the field's annotation says
    """Return the default of a setting."""
    return SETTINGS[name].default
