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

from paceline._internal.nearest import nearest
from paceline.errors import InvalidArgumentError, Source
from paceline.settings import kinds
from paceline.settings.kinds import Kind

_UNSET: Final[Any] = object()
_BY_NAME: Final = "--"
SEARCHED = "searched"
"""How the default of a setting begins that a command searches unless it is given."""
REQUIRED = "required"
"""How the default of a setting begins that must be given."""


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
    part: str = ""
    """Its part of a forecast: `trace`, `cluster`, `coordinator`, `core` (options of a scenario), `knob` (those of which
    a sweep takes several values), `each` (changes to traces, likewise) or `swept`."""
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
        return InvalidArgumentError(
            f"'{value!s:.80}' is a list, and one value is expected", remedy=self._takers(value, place)
        )

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

    def _takers(self, value: object, place: str | None) -> str:
        """Return one of the values, and which commands and functions take a list or search the values themselves."""
        one = f"{{this={str(value).split(',')[0].strip()}}}"
        takers = [_in_words(place) for place, use in self.uses.items() if (use.kind or self.kind).is_list]
        if takers:
            return f"{one} (lists: {', '.join(takers)})"
        searching = [it for it in self.uses if self.default_text(it).startswith(SEARCHED)]
        if place in searching:
            return "drop {this} (it is searched then)"
        return one + (
            f" ({', '.join(map(_in_words, searching))} searches it)" if searching else " (a command for each)"
        )


def _in_words(place: str) -> str:
    """Return a command or function as users know it."""
    return place if place.startswith("paceline.") else f"paceline {place}"


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
    "import_tensorflow": "import tensorflow",
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
    "import tensorflow",
    "export chakra",
)
OVER_MPI = ("mpi", "grpc+mpi")
"""Transports that send tensors through an MPI library."""
OVER_UCX = ("grpc+ucx", "grpc+verbs", "grpc+gdr")
"""Transports that send tensors through UCX."""
MOST_EMULATED = 250
"""Hosts of an emulated cluster."""
DEFAULT_WORKERS = (2, 4, 8, 16, 32, 64)
_STRATEGIES = Use(kind=kinds.STRATEGIES, help="Gradient sync: native (NCCL), ring, tree, …", default=("all",))
_SEVERAL_SERVERS = Use(kind=kinds.SEVERAL_SERVERS)
_TIMES = Use(kind=kinds.TIMES)
_SHARDINGS = Use(kind=kinds.SEVERAL_SHARDINGS)
_SEVERAL_WAYS = Use(kind=kinds.several(kinds.whole(1, 1024)))
_COMPRESSIONS = Use(kind=kinds.SEVERAL_COMPRESSIONS)
_SYNCS = Use(kind=kinds.several(kinds.SYNC_EVERY))
_BUCKET_SIZES = Use(kind=kinds.BUCKET_SIZES)
_LIBRARIES = Use(kind=kinds.LIBRARIES)
_ONE = Use(kind=kinds.WORKERS, default=None, default_words=REQUIRED)
_SHRINK, _SCALE = kinds.factor("4 means a quarter of the bytes"), kinds.factor("4 means four times as long")
_HOSTS = Use(kind=kinds.whole(1, MOST_EMULATED), help="Worker hosts.", default=None, required=True, also="")
_HOST_RATE = Use(kind=kinds.RATE, help="NIC rate of each host: 500Mbps.", default=None, default_words="", required=True)
_GPU_OF_A_RECORDING = Use(
    kind=kinds.TEXT, help="Rescale the trace to the published rate of a GPU: V100, A100, …", renamed="gpu"
)
_MODEL_OF_A_FILE = Use(
    help="Model of a trainer's file: a built-in name, org/name, a folder or a config.json.",
    default_words="the file's",
)
_COORDINATORS = Use(
    kind=kinds.COORDINATORS,
    help="Tensor negotiation: negotiate, global-sleep:N, graph, …, all.",
    default=("none",),
)

_ALL: tuple[Setting, ...] = (
    Setting(
        name="workers",
        also="gpus",
        kind=kinds.SEVERAL_WORKERS,
        help="Number of GPUs (ranks).",
        default=DEFAULT_WORKERS,
        uses=_in(
            "simulate",
            "report",
            python=_ONE,
            sweep=Use(default=None, default_words=REQUIRED),
            validate=Use(help="Ranks, each on its own host.", default=(4,)),
            advise=Use(help="Numbers of GPUs, each with its own table.", default=None, default_words=REQUIRED),
            emulate_up=_HOSTS,
            emulate_run=_HOSTS,
            emulate_check=_HOSTS,
            export_chakra=Use(
                kind=kinds.whole(1, 100_000),
                help="Number of ranks, one file each.",
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
        help="Strategy: ring, tree, hierarchical, … (paceline list strategies).",
        default_words="by message size",
        uses=_in(
            *JOBS,
            simulate=_STRATEGIES,
            report=_STRATEGIES,
            python=Use(kind=kinds.STRATEGY, default_words="the library's"),
            sweep=_STRATEGIES,
            validate=_STRATEGIES,
            bench=Use(
                kind=kinds.several(kinds.STRATEGY), help="Strategies of engine paceline, one row each: ring, tree, …"
            ),
        ),
    ),
    Setting(
        name="library",
        kind=kinds.LIBRARY,
        help="Framework to model: ddp, horovod, …; none: no framework costs.",
        default_words="the trace's, or ddp",
        uses=_in(SIMULATE, **_lists(_LIBRARIES)),
    ),
    Setting(
        name="servers",
        variable="PACELINE_SERVERS",
        kind=kinds.SERVERS,
        help="Parameter servers.",
        default=1,
        part="swept",
        uses=_in(
            JOIN,
            SIMULATE,
            **_lists(_SEVERAL_SERVERS),
            validate=Use(kind=kinds.SEVERAL_SERVERS, help="Parameter servers, each on its own host."),
            bench=Use(help="Parameter servers, on the hosts of the first ranks."),
            run=Use(help="Parameter servers, each a separate process."),
            emulate_up=Use(
                kind=kinds.whole(1, MOST_EMULATED),
                help="Parameter-server hosts.",
                default=None,
                default_words="none",
            ),
            emulate_run=Use(help="Parameter servers, each on its own host."),
        ),
    ),
    Setting(
        name="compute_speedup",
        kind=kinds.SPEEDUP,
        help="Divide all compute times by X.",
        default=1.0,
        part="swept",
        uses=_in(SIMULATE, **_lists(Use(kind=kinds.SPEEDUPS))),
    ),
    Setting(
        name="device",
        kind=kinds.choice(("cpu", "cuda")),
        help="Device: cpu, cuda.",
        part="trace",
        uses=_in(
            simulate=_GPU_OF_A_RECORDING,
            report=_GPU_OF_A_RECORDING,
            python=_GPU_OF_A_RECORDING,
            sweep=_GPU_OF_A_RECORDING,
            record=Use(help="With --model: device, cpu or cuda.", default_words="cpu"),
            bench=Use(
                help="Device of the PyTorch engines, cpu or cuda; ranks may share a GPU.",
                default_words="cpu; ddp-nccl: cuda",
            ),
            import_kineto=Use(
                kind=kinds.TEXT, help="Device it was recorded on: V100, A100, …", default_words="the file's"
            ),
            import_sends=Use(kind=kinds.TEXT, help="Device it was recorded on: V100, A100, …"),
            import_tensorflow=Use(kind=kinds.TEXT, help="Device it was recorded on: V100, A100, …"),
        ),
    ),
    Setting(
        name="samples_per_s",
        kind=kinds.RATE_OF_SAMPLES,
        help="Rescale the trace to your measured 1-GPU rate, in samples/s.",
        part="trace",
        uses=_in("simulate", "report", SIMULATE, SWEEP),
    ),
    Setting(
        name="batch",
        kind=kinds.BATCH,
        help="Batch size per GPU: 32, or 1k for 1,024.",
        default_words="the trace's, or 1; 2 of a --loss of pairs",
        part="trace",
        uses=_in(
            "simulate",
            "report",
            SIMULATE,
            SWEEP,
            models=Use(help="Batch size.", default_words="1"),
            advise=Use(help="Batch size per GPU and accumulation step.", default_words="searched"),
            record=Use(help="Batch size.", default_words="32; a script's own"),
            import_kineto=Use(help="Batch size per rank.", default_words="the input's"),
            import_chakra=Use(help="Batch size per rank.", default_words="the input's"),
            import_sends=Use(help="Batch size per rank.", default_words="", required=True),
            import_tensorflow=Use(help="Batch size per rank.", default_words="", required=True),
        ),
    ),
    Setting(
        name="dtype",
        kind=kinds.DTYPE,
        help="Compute precision: bf16, fp16, fp8, tf32, fp32. Of a trace: gradient dtype on the wire.",
        default_words="the trace's; models: bf16, else fp16",
        part="trace",
        uses=_in(
            "simulate",
            "report",
            SIMULATE,
            SWEEP,
            advise=Use(help="Compute precision: bf16, fp16, fp8, tf32, fp32.", default_words="bf16, else fp16"),
            models=Use(
                kind=kinds.PRECISION,
                help="Compute precision: bf16, fp16, fp8, tf32, fp32.",
                default_words="bf16, else fp16",
            ),
            record=Use(
                kind=kinds.choice(("bf16", "fp16", "tf32", "fp32")),
                help="With --gpu: compute precision, as autocast: bf16, fp16, tf32, fp32.",
                default_words="the script's own",
            ),
            import_chakra=Use(
                kind=kinds.GRADIENT_DTYPE,
                help="Gradient dtype: float32, float16, bfloat16, float64.",
                default_words="float32",
            ),
            import_sends=Use(
                kind=kinds.GRADIENT_DTYPE,
                help="Gradient dtype: float32, float16, bfloat16, float64.",
                default="float32",
            ),
            import_tensorflow=Use(
                kind=kinds.GRADIENT_DTYPE,
                help="Gradient dtype: float32, float16, bfloat16, float64.",
                default_words="the file's, or float32",
            ),
        ),
    ),
    Setting(
        name="gpu",
        kind=kinds.TEXT,
        help="GPU types: h100, a100, …; computes a trace again, or takes its published rate.",
        part="trace",
        uses=_in(
            **{SIMULATE: Use(help="GPU type: h100, a100, …")},
            **_lists(Use(kind=kinds.names_of(str))),
            advise=Use(
                kind=kinds.names_of(str),
                help="GPU types to compare: h100, a100, …",
                default_words=f"{REQUIRED}, or MODEL@h100, or a --cluster with GPUs",
            ),
            models=Use(help="GPU type: h100, a100, …"),
            explore=Use(help="GPU type the sliders start from, for models.", default_words="h100"),
            record=Use(help="Estimate times for a GPU type: h100, a100, …; needs no GPU.", former="--on"),
        ),
    ),
    Setting(
        name="power_limit",
        kind=kinds.POWER,
        help="Power limit of each GPU, as nvidia-smi -pl sets it: 500W.",
        default_words="the board's",
        part="trace",
        uses=_in(
            *("advise", SIMULATE, "models"),
            **_lists(Use(kind=kinds.POWERS, help="Power limits of each GPU, as nvidia-smi -pl sets them: 500W.")),
            record=Use(help="With --gpu: power limit, as nvidia-smi -pl sets it: 500W."),
        ),
    ),
    Setting(
        name="seq",
        kind=kinds.SEQUENCE,
        help="Sequence length in tokens: 8192, or 8k.",
        default_words="the model's, at most 8192",
        part="trace",
        uses=_in(
            *("advise", "report", SWEEP, "models"),
            **dict.fromkeys(
                ("simulate", SIMULATE),
                Use(
                    kind=kinds.or_word("max", kinds.SEQUENCE),
                    help="Sequence length in tokens: 8192, or 8k; max: the longest that fits.",
                ),
            ),
        ),
    ),
    Setting(
        name="checkpointing",
        kind=kinds.CHECKPOINTING,
        help="Activation recompute: none, selective, full, reentrant (FSDP1), offload (block inputs on the CPU).",
        default_words="none",
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
        help="Attention kernel: flash (today's), flash-1, flash-2, efficient (masks), unfused (stores scores).",
        default_words="flash",
        part="trace",
        uses=_in("advise", "simulate", "report", SIMULATE, SWEEP, "models"),
    ),
    Setting(
        name="kernels",
        kind=kinds.KERNELS,
        help="Kernel fusion: eager, fused, compiled, transformer-engine.",
        default_words="fused; with --lora: eager",
        part="trace",
        uses=_in("advise", "simulate", "report", SIMULATE, SWEEP, "models"),
    ),
    Setting(
        name="precision",
        kind=kinds.RECIPE,
        help="bf16, fsdp-mixed, megatron, o2, mixed, fp8, fp32, amp-bf16, amp-fp16, upcast-bf16, upcast-fp16.",
        default_words="mixed; of --dtype fp8: fp8, of fp32: fp32; with --lora: amp-bf16",
        part="trace",
        uses=_in("advise", "simulate", "report", SIMULATE, SWEEP, "models"),
    ),
    Setting(
        name="optimizer_impl",
        kind=kinds.OPTIMIZER_IMPL,
        help="Optimizer kernels: fused, foreach, loop; in-backward lets each gradient go once it is used.",
        default_words="fused with FP32 masters, else foreach",
        part="trace",
        uses=_in("advise", "simulate", "report", SIMULATE, SWEEP, "models"),
    ),
    Setting(
        name="moment_dtype",
        kind=kinds.MOMENT_DTYPE,
        help="Type of AdamW's and momentum's moments: bf16, fp16, fp32 (Megatron's --exp-avg-dtype).",
        default_words="the recipe's",
        part="trace",
        uses=_in("advise", "simulate", "report", SIMULATE, SWEEP, "models"),
    ),
    Setting(
        name="cuda_graphs",
        flag="--cuda-graphs/--no-cuda-graphs",
        kind=kinds.SWITCH,
        help="Blocks as CUDA graphs, without routed experts (Megatron's, or torch.compile's reduce-overhead).",
        default=None,
        default_words="false",
        part="trace",
        uses=_in("advise", "simulate", "report", SIMULATE, SWEEP, "models"),
    ),
    Setting(
        name="loss_chunks",
        kind=kinds.LOSS_CHUNKS,
        help="Fused cross-entropy, over so many chunks of tokens: 1 (of all logits), 8, 32.",
        default_words="none: not fused; in Megatron's kernels",
        part="trace",
        uses=_in("advise", "simulate", "report", SIMULATE, SWEEP, "models"),
    ),
    Setting(
        name="loss_dtype",
        kind=kinds.LOSS_DTYPE,
        help="Type of cross-entropy: fp32, to which logits are converted; bf16, fp16, as the logits are.",
        default_words="fp32, but the logits' of BERT, BART and T5",
        part="trace",
        uses=_in("advise", "simulate", "report", SIMULATE, SWEEP, "models"),
    ),
    Setting(
        name="offload",
        kind=kinds.OFFLOAD,
        help="Parts in the host's memory: cpu, nvme, or cpu:PART,… (parameters, states, activations).",
        default_words="none; its parts: states, with zero3 and hsdp parameters, too",
        part="trace",
        uses=_in("advise", "simulate", "report", SIMULATE, SWEEP),
    ),
    Setting(
        name="loss",
        kind=kinds.LOSS,
        help="Loss: lm, dpo, kto, orpo, cpo, simpo. A batch counts sequences: a pair is two.",
        default_words="lm",
        part="trace",
        uses=_in("advise", "simulate", "report", SIMULATE, SWEEP),
    ),
    Setting(
        name="real_tokens",
        kind=kinds.share(0.001, "a share of the tokens", "SHARE", usual=0.6),
        help="Share of the tokens that are no padding: 0.6, or 60%.",
        default_words="1, packed sequences",
        part="trace",
        uses=_in("advise", "simulate", "report", SIMULATE, SWEEP),
    ),
    Setting(
        name="lora",
        kind=kinds.ADAPTER,
        help="Train LoRA adapters of this rank: 16, 16:attention, 64:q_proj,v_proj.",
        default_words="none: all weights are trained; modules: all-linear",
        part="trace",
        uses=_in("advise", "simulate", "report", SIMULATE, SWEEP, "models"),
    ),
    Setting(
        name="dora",
        flag="--dora/--no-dora",
        kind=kinds.SWITCH,
        help="With --lora: DoRA, which also trains the length of each row of a weight.",
        default=None,
        default_words="false",
        part="trace",
        uses=_in("advise", "simulate", "report", SIMULATE, SWEEP, "models"),
    ),
    Setting(
        name="lora_dropout",
        kind=kinds.share(0, "a share of the inputs", "SHARE", usual=0.05),
        help="With --lora: dropout before adapters, of which each keeps its own input: 0.05.",
        default_words="0",
        part="trace",
        uses=_in("advise", "simulate", "report", SIMULATE, SWEEP, "models"),
    ),
    Setting(
        name="quantize",
        kind=kinds.QUANTIZATION,
        help="With --lora: how the weights beside adapters are held: nf4, nf4-double, int8, gptq-int4.",
        default_words="none: in 16 bits",
        part="trace",
        uses=_in("advise", "simulate", "report", SIMULATE, SWEEP, "models"),
    ),
    Setting(
        name="modules_to_save",
        kind=kinds.MODULE_NAMES,
        help="With --lora: modules that are trained wholly, as PEFT does: embed_tokens,lm_head.",
        default_words="none",
        part="trace",
        uses=_in("advise", "simulate", "report", SIMULATE, SWEEP, "models"),
    ),
    Setting(
        name="freeze",
        kind=kinds.PATTERNS,
        help="Layers that are not trained: model.embed, or model.layers.?.*.",
        default_words="none",
        part="trace",
        uses=_in("advise", "simulate", "report", SIMULATE, SWEEP, "models"),
    ),
    Setting(
        name="tensor_parallel",
        kind=kinds.whole(1, 1024),
        help="Tensor-parallel degree, within a node.",
        default_words="1",
        part="trace",
        uses=_in("simulate", "report", SIMULATE, SWEEP, advise=_SEVERAL_WAYS),
    ),
    Setting(
        name="expert_parallel",
        kind=kinds.whole(1, 4096),
        help="Expert-parallel degree, of MoE models.",
        default_words="1",
        part="trace",
        uses=_in("simulate", "report", SIMULATE, SWEEP, advise=_SEVERAL_WAYS),
    ),
    Setting(
        name="expert_dispatch",
        kind=kinds.EXPERT_DISPATCH,
        help="Transport of tokens to experts: alltoall (NCCL's), deepep (DeepEP and HybridEP).",
        default_words="alltoall",
        part="trace",
        uses=_in("advise", "simulate", "report", SIMULATE, SWEEP),
    ),
    Setting(
        name="context_parallel",
        kind=kinds.whole(1, 1024),
        help="Context-parallel degree: ranks that split each sequence.",
        default_words="1",
        part="trace",
        uses=_in("simulate", "report", SIMULATE, SWEEP, advise=_SEVERAL_WAYS),
    ),
    Setting(
        name="pipeline_parallel",
        kind=kinds.whole(1, 1024),
        help="Pipeline stages, in a 1F1B schedule.",
        default_words="1",
        part="trace",
        uses=_in("simulate", "report", SIMULATE, SWEEP, advise=_SEVERAL_WAYS),
    ),
    Setting(
        name="microbatches",
        kind=kinds.whole(1, 100_000),
        help="Microbatches per iteration, of --batch samples each.",
        default_words=f"{REQUIRED} with a pipeline",
        part="trace",
        uses=_in("simulate", "report", SIMULATE, SWEEP),
    ),
    Setting(
        name="virtual_stages",
        kind=kinds.whole(1, 1024),
        help="Interleaved chunks per pipeline stage.",
        default_words="1",
        part="trace",
        uses=_in("simulate", "report", SIMULATE, SWEEP, advise=_SEVERAL_WAYS),
    ),
    Setting(
        name="measured",
        kind=kinds.Kind("VALUE,…", kinds.text, python="str"),
        help="Measured steps to scale compute to: 2.8s@8, 1900tokens/s/GPU@8, 45%MFU@16, or a recording.",
        default_words="forecast",
        part="trace",
        uses=_in("simulate", SIMULATE, SWEEP),
    ),
    Setting(
        name="add_module",
        kind=kinds.MODULE,
        help="Add N modules: compute:25, network:25 or FILE.json:25.",
        part="each",
        uses=_in(SIMULATE, **_lists(Use(kind=kinds.MODULES))),
    ),
    Setting(
        name="send_order",
        kind=kinds.ORDER,
        help="Order of tensors that servers send: recorded, forward, reverse, last:fc6, first:fc6, or a file.",
        default_words="recorded",
        part="each",
        uses=_in(SIMULATE, **_lists(Use(kind=kinds.ORDERS))),
    ),
    Setting(
        name="baseline",
        kind=kinds.Kind("NAME|KEY=VALUE,…", kinds.text, short="NAME"),
        help="Speed-up over a row of your choice: ps, or strategy=ps,servers=1.",
        default_words="the first row of each configuration",
        uses=_in("simulate", SWEEP),
    ),
    Setting(
        name="cluster",
        kind=kinds.NAMED_FILE,
        help="Cluster: dgx-h100, p3.16xlarge, … or a file; other options override it.",
        default="flat",
        uses=_in(
            *FORECASTS,
            explore=Use(kind=kinds.TEXT, help="Built-in cluster the sliders start from, for traces."),
            validate=Use(help="With --here: cluster to simulate.", default=None, default_words="probed first"),
            bench=Use(help="Cluster for the forecast.", default=None),
            advise=Use(
                kind=kinds.SEVERAL_NAMED_FILES,
                help="Clusters to compare: dgx-h100, p4d, … or a file; other options override it.",
                default=None,
                default_words="the GPU's nodes, or flat",
            ),
        ),
    ),
    Setting(
        name="bandwidth",
        kind=kinds.RATES,
        help="Network bandwidth per node (with rails: per GPU), each direction: 100Gbps.",
        default_words="the cluster's; flat: 25Gbps",
        uses=_in(
            "simulate",
            "report",
            SWEEP,
            python=Use(kind=kinds.RATE),
            validate=Use(help="NIC rate of each host: 500Mbps.", default=("500Mbps",)),
            bench=Use(kind=kinds.RATE, help="NIC rate of each host, for the forecast.", default_words="the emulated"),
            advise=Use(kind=kinds.RATE, former="--network"),
            emulate_up=_HOST_RATE,
            emulate_run=_HOST_RATE,
            emulate_check=_HOST_RATE,
        ),
    ),
    Setting(
        name="channel",
        kind=kinds.CHANNEL,
        help="Transport between nodes: tcp, rdma, auto, none (full bandwidth).",
        default_words="the cluster's; flat: tcp to 25Gbps, then rdma",
        uses=_in("advise", *FORECASTS),
    ),
    Setting(
        name="latency",
        kind=kinds.TIME,
        help="One-way latency between nodes: 5us.",
        default_words="the cluster's; flat: the channel's",
        uses=_in(
            "advise",
            *FORECASTS,
            **_lists(_TIMES),
            validate=Use(help="Simulated one-way latency: 50us.", default_words="none"),
        ),
    ),
    Setting(
        name="message_overhead",
        kind=kinds.TIME,
        help="Fixed cost per message at its sender: 10us.",
        default_words="the cluster's; flat: the channel's",
        part="cluster",
        uses=_in(SIMULATE, SWEEP, validate=Use(help="Simulated fixed cost per message: 10us.", default_words="none")),
    ),
    Setting(
        name="gpus_per_node",
        kind=kinds.GPUS_PER_NODE,
        help="GPUs that share a node's bandwidth.",
        default_words="the cluster's, else that of the GPU's nodes, or 8; 1 without --gpu",
        part="cluster",
        uses=_in("advise", SIMULATE, **_lists(Use(kind=kinds.SEVERAL_GPUS_PER_NODE))),
    ),
    Setting(
        name="intra_bandwidth",
        kind=kinds.RATE,
        help="Intra-node bandwidth per GPU, each direction: 3.6Tbps.",
        default_words="the cluster's; flat: 100Gbps",
        part="cluster",
        uses=_in("advise", *FORECASTS),
    ),
    Setting(
        name="stragglers",
        flag="--straggler",
        kind=kinds.STRAGGLERS,
        help="Slow ranks: 13:1.2 computes 1.2x as long.",
        default_words="the cluster's",
        part="cluster",
        uses=_in("advise", *FORECASTS),
    ),
    Setting(
        name="degraded",
        flag="--degrade",
        kind=kinds.DEGRADED,
        help="Slow links: leaf0-spine1:0.5 keeps half; 0 removes it.",
        default_words="the cluster's",
        part="cluster",
        uses=_in(*FORECASTS),
    ),
    Setting(
        name="network",
        kind=kinds.NETWORK,
        help="Link sharing: fifo, or fluid (max-min fair).",
        default="fifo",
        part="core",
        uses=_in(*FORECASTS, "validate"),
    ),
    Setting(
        name="bucket_size",
        kind=kinds.BUCKET_SIZE,
        help="Gradient bucket size: 25MB; none: no fusion.",
        default_words="the library's",
        part="swept",
        uses=_in(
            SIMULATE,
            "advise",
            **_lists(_BUCKET_SIZES),
            validate=Use(kind=kinds.typed(kinds.BUCKET_SIZE), default="none"),
            replay=Use(default="none"),
            bench=Use(
                kind=kinds.SIZE, help="Gradient bucket size: 25MB.", default_words="each engine's", former="--fusion"
            ),
            export_chakra=Use(
                kind=kinds.BUCKET_SIZE,
                help="Gradient bucket size: 25MB; none: no fusion.",
                default=25_000_000,
                default_words="25MB",
            ),
            plan=Use(
                kind=kinds.typed(kinds.BUCKET_SIZE),
                help="All-reduce bucket size: 25MB; none: no fusion.",
                default="64MB",
            ),
        ),
    ),
    Setting(
        name="chunk",
        variable="PACELINE_CHUNK",
        kind=kinds.CHUNK,
        help="Message size: whole, per-worker, or 512KiB.",
        default_words="whole; rings: per-worker; tree: 512KiB",
        part="knob",
        uses=_in(SIMULATE, *JOBS, **_lists(Use(kind=kinds.CHUNKS))),
    ),
    Setting(
        name="placement",
        variable="PACELINE_PLACEMENT",
        kind=kinds.PLACEMENT,
        help='Tensors to servers: round-robin, tensorflow, even, or a file {"tensor": server}.',
        default="round-robin",
        part="knob",
        uses=_in(
            *JOBS,
            simulate=Use(kind=kinds.PLACEMENTS_LISTED),
            report=Use(kind=kinds.PLACEMENTS_LISTED),
            python=Use(kind=kinds.PLACEMENT_OR_SERVERS),
            sweep=Use(kind=kinds.SEVERAL_PLACEMENTS),
        ),
    ),
    Setting(
        name="distribution",
        variable="PACELINE_DISTRIBUTION",
        kind=kinds.DISTRIBUTION,
        help="Server send order: round-robin (by tensor), block (by worker).",
        default="round-robin",
        part="knob",
        uses=_in(SIMULATE, *JOBS, **_lists(Use(kind=kinds.DISTRIBUTIONS))),
    ),
    Setting(
        name="pull",
        variable="PACELINE_PULL",
        kind=kinds.PULL,
        help="When forward waits for parameters: per layer or per step.",
        default="step",
        default_words="the library's: step; none, TensorFlow: layer",
        part="core",
        uses=_in(*FORECASTS, *JOBS, replay=Use(default="layer", default_words="layer")),
    ),
    Setting(
        name="staleness",
        variable="PACELINE_STALENESS",
        kind=kinds.STALENESS,
        help="Iterations that async-ps workers may be ahead: 0 (synchronous), 3; none: any.",
        default_words="none",
        part="core",
        uses=_in(
            *FORECASTS,
            *JOBS,
            validate=Use(
                kind=kinds.several(kinds.STALENESS), help="Bounds on the staleness of async-ps: none, 0, 2, …"
            ),
        ),
    ),
    Setting(
        name="inside",
        variable="PACELINE_INSIDE",
        kind=kinds.INSIDE,
        help="Intra-node algorithm: root or ring.",
        default="ring",
        part="core",
        uses=_in(*FORECASTS, *JOBS, bench=Use(help="Reduction inside a node in ray-ps: root or ring.", default="root")),
    ),
    Setting(
        name="sharding",
        kind=kinds.SHARDING,
        help="Sharding: none (DDP), zero1, zero2, zero3 (FSDP), hsdp; in groups: hsdp:8, zero1:8, zero2:8.",
        default_words="none",
        part="swept",
        uses=_in(
            *(SIMULATE, "replay"),
            **_lists(_SHARDINGS),
            validate=replace(_SHARDINGS, help="Replay and simulate sharding: zero1, zero3, hsdp, …"),
            advise=Use(kind=kinds.SEVERAL_SHARDINGS, default_words="searched"),
        ),
    ),
    Setting(
        name="reshard_after_forward",
        kind=kinds.RESHARD,
        help="Reshard FSDP units after forward: yes, no, or over N ranks.",
        default_words="yes",
        part="core",
        uses=_in(*FORECASTS, "replay"),
    ),
    Setting(
        name="prefetch",
        kind=kinds.whole(0, 10_000),
        help="FSDP units to prefetch in forward.",
        default_words="1; zero1, zero2: gathered in the optimizer step",
        part="core",
        uses=_in("advise", *FORECASTS, "replay"),
    ),
    Setting(
        name="accumulate",
        kind=kinds.whole(1, 10_000),
        help="Gradient accumulation steps, of --batch samples each.",
        default_words="1",
        part="core",
        uses=_in(*FORECASTS, "replay", advise=Use(default_words="searched with --global-batch, or 1")),
    ),
    Setting(
        name="accumulate_sync",
        flag="--accumulate-sync/--no-accumulate-sync",
        kind=kinds.SWITCH,
        help="Sync gradients after every accumulation step.",
        default_words="if gradients are sharded",
        part="core",
        uses=_in(*FORECASTS, "replay"),
    ),
    Setting(
        name="unit",
        kind=kinds.Kind("PATTERN", kinds.text),
        help="Layers that form one FSDP unit: transformer.h.*; others form the root.",
        default_words="numbered blocks",
        part="core",
        uses=_in("advise", *FORECASTS, "replay"),
    ),
    Setting(
        name="param_dtype",
        kind=kinds.ONE_DTYPE,
        help="FSDP all-gather dtype: bf16, fp16, fp32, float64.",
        default_words="the trace's",
        part="core",
        uses=_in("advise", *FORECASTS, "replay"),
    ),
    Setting(
        name="reduce_dtype",
        kind=kinds.ONE_DTYPE,
        help="Gradient reduction dtype: bf16, fp16, fp32, float64.",
        default_words="the trace's",
        part="core",
        uses=_in("advise", *FORECASTS, "replay"),
    ),
    Setting(
        name="optimizer",
        kind=kinds.OPTIMIZER,
        help="adamw (adam), adamw-8bit, paged-adamw, paged-adamw-8bit, adafactor, lion, muon, sgd, momentum.",
        default_words="adam",
        part="core",
        uses=_in("advise", *FORECASTS, "models"),
    ),
    Setting(
        name="compression",
        kind=kinds.COMPRESSION,
        help="Gradient compression: none, fp16, bf16, int8, powersgd:RANK, topk:DENSITY.",
        default_words="none",
        part="swept",
        uses=_in(
            *(SIMULATE, "replay"),
            **_lists(_COMPRESSIONS),
            validate=replace(_COMPRESSIONS, help="Replay and simulate compression: int8, powersgd:4, …"),
            probe=Use(
                kind=kinds.MEASURED_COMPRESSIONS,
                help="Also time compression: fp16, int8, powersgd:4, …; needs torch.",
            ),
        ),
    ),
    Setting(
        name="sync_every",
        kind=kinds.SYNC_EVERY,
        help="Sync parameters every N steps (local SGD, DiLoCo); 1: gradients.",
        default_words="1",
        part="swept",
        uses=_in(*(SIMULATE, "replay"), **_lists(_SYNCS)),
    ),
    Setting(
        name="memory",
        kind=kinds.MEMORY,
        help="GPU memory to fit into: 80GB.",
        default_words="that of --gpu",
        part="core",
        uses=_in("advise", *FORECASTS),
    ),
    Setting(
        name="coordinator",
        variable="PACELINE_COORDINATOR",
        kind=kinds.COORDINATOR,
        help="Tensor negotiation of hvd jobs: graph, negotiate, …",
        default_words="graph; with servers: negotiate",
        part="coordinator",
        uses=_in(
            *JOBS,
            simulate=_COORDINATORS,
            report=_COORDINATORS,
            python=replace(_COORDINATORS, kind=kinds.ONE_COORDINATOR, default="none"),
            sweep=_COORDINATORS,
            bench=Use(help="Coordinator of engine paceline, with DistributedOptimizer: graph, …", default_words="DDP"),
        ),
    ),
    Setting(
        name="coordinator_plan",
        variable="PACELINE_COORDINATOR_PLAN",
        kind=kinds.FILE,
        help="Plan of coordinator graph, as `paceline plan --json` prints it: plan.json.",
        default_words="the first step's order",
        uses=_in(*JOBS),
    ),
    Setting(
        name="coordinator_constants",
        kind=kinds.CONSTANTS,
        help="Negotiation costs: summit, horovod, JSON (docs/explanation/coordinator-model.md).",
        default_words="summit on summit, else horovod",
        part="coordinator",
        uses=_in(*FORECASTS),
    ),
    Setting(
        name="barrier",
        flag="--barrier/--no-barrier",
        variable="PACELINE_BARRIER",
        kind=kinds.SWITCH,
        help="Start each iteration together on all ranks.",
        default=True,
        part="core",
        uses=_in(
            *FORECASTS,
            "replay",
            **dict.fromkeys(
                JOBS, Use(help="With servers: wait for a step's sums together, or each layer for its own.")
            ),
        ),
    ),
    Setting(
        name="overlap",
        flag="--overlap/--no-overlap",
        kind=kinds.SWITCH,
        help="Overlap communication with the backward pass.",
        default=True,
        part="core",
        uses=_in(*FORECASTS, "replay"),
    ),
    Setting(
        name="iterations",
        kind=kinds.whole(1, 100_000),
        help="Iterations to measure.",
        default_words="1; without barrier: 2; async-ps: 20",
        part="core",
        uses=_in(*FORECASTS, replay=Use(help="Iterations to measure.", default=10)),
    ),
    Setting(
        name="seed",
        kind=kinds.SEED,
        help="Jitter seed.",
        default=0,
        part="core",
        uses=_in(*FORECASTS, bench=Use(help="Seed of weights and images.", default=1)),
    ),
    Setting(
        name="executor",
        kind=kinds.EXECUTOR,
        help="Where a sweep runs: local or ray.",
        default="local",
        uses=_in("simulate", SWEEP),
    ),
    Setting(
        name="critical_path",
        flag="",
        kind=kinds.SWITCH,
        help="Compute the critical path, a fifth of the run time.",
        default=True,
        part="core",
        uses=_in(SIMULATE, SWEEP),
    ),
    Setting(
        name="detail",
        kind=kinds.SWITCH,
        help="List the busy time of each worker and link.",
        default=False,
        part="core",
        uses=_in(SIMULATE, SWEEP, simulate=Use(help="With --json: busy time of each worker and link.", default=None)),
    ),
    # Only of jobs.
    Setting(
        name="transport",
        variable="PACELINE_TRANSPORT",
        kind=kinds.TRANSPORT,
        help="Transport: auto, shm, tcp, mpi, grpc, grpc+tcp, grpc+mpi, grpc+ucx, grpc+verbs, grpc+gdr.",
        default="auto",
        uses=_in(
            *JOBS,
            bench=Use(
                help="Engine paceline: auto, shm, tcp, mpi, grpc, grpc+tcp, grpc+mpi, grpc+ucx, grpc+verbs, grpc+gdr."
            ),
        ),
    ),
    Setting(
        name="mpi_library",
        flag="",
        variable="PACELINE_MPI_LIBRARY",
        kind=kinds.MPI_LIBRARY,
        help="MPI library, or its folder (docs/how-to/mpi.md).",
        default_words="the launcher's",
        idle_with=("auto", "shm", "tcp", "grpc", "grpc+tcp", *OVER_UCX),
        uses=_in(JOIN),
    ),
    Setting(
        name="ucx_library",
        flag="",
        variable="PACELINE_UCX_LIBRARY",
        kind=kinds.UCX_LIBRARY,
        help="UCX library, or its folder (docs/how-to/grpc.md).",
        default_words="the host's, or package libucx",
        idle_with=("auto", "shm", "tcp", "grpc", "grpc+tcp", *OVER_MPI),
        uses=_in(JOIN),
    ),
    Setting(
        name="native",
        variable="PACELINE_NATIVE",
        kind=kinds.NATIVE,
        help="Library of strategy native between CPUs without MPI: oneccl (docs/how-to/oneccl.md).",
        default_words="none",
        idle_with=OVER_MPI,
        uses=_in(*JOBS),
    ),
    Setting(
        name="oneccl_library",
        flag="",
        variable="PACELINE_ONECCL_LIBRARY",
        kind=kinds.ONECCL_LIBRARY,
        help="oneCCL library (docs/how-to/oneccl.md).",
        default_words="libccl.so.2",
        uses=_in(JOIN),
    ),
    Setting(
        name="cuda_library",
        flag="",
        variable="PACELINE_CUDA_LIBRARY",
        kind=kinds.CUDA_LIBRARY,
        help="CUDA driver library (docs/how-to/cuda.md).",
        default_words="libcuda.so.1",
        uses=_in(JOIN),
    ),
    Setting(
        name="cuda",
        variable="PACELINE_CUDA",
        kind=kinds.CUDA,
        help="Path of CUDA tensors: auto, nccl, ipc (on devices), host, mpi (docs/how-to/cuda.md).",
        default="auto",
        uses=_in(*JOBS),
    ),
    Setting(
        name="cuda_pointer_cache",
        flag="",
        variable="PACELINE_CUDA_POINTER_CACHE",
        kind=kinds.SWITCH,
        help="Cache handles of device memory, and keep peers' memory open (docs/how-to/cuda.md).",
        default=True,
        uses=_in(JOIN),
    ),
    Setting(
        name="nccl_library",
        flag="",
        variable="PACELINE_NCCL_LIBRARY",
        kind=kinds.NCCL_LIBRARY,
        help="NCCL library (docs/how-to/cuda.md).",
        default_words="torch's, or libnccl.so.2",
        uses=_in(JOIN),
    ),
    Setting(
        name="streams",
        variable="PACELINE_STREAMS",
        kind=kinds.whole(1, kinds.MOST_STREAMS),
        help="TCP connections per pair of ranks.",
        default=1,
        idle_with=("shm", "grpc", *OVER_MPI, *OVER_UCX),
        uses=_in(*JOBS),
    ),
    Setting(
        name="multicast",
        variable="PACELINE_MULTICAST",
        kind=kinds.MULTICAST,
        help="IP multicast for data that many ranks receive: 239.77.0.0:47700, one per job.",
        default_words="unicast",
        idle_with=("shm", "grpc", *OVER_MPI, *OVER_UCX),
        uses=_in(*JOBS),
    ),
    Setting(
        name="tls",
        flag="--tls/--no-tls",
        variable="PACELINE_TLS",
        kind=kinds.SWITCH,
        help="Encrypt gRPC traffic (docs/how-to/grpc.md).",
        default_words="if other hosts can connect",
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
        idle_with=("tcp", "grpc", "grpc+tcp", *OVER_MPI, *OVER_UCX),
        uses=_in(JOIN),
    ),
    Setting(
        name="timeout_s",
        flag="--timeout",
        variable="PACELINE_TIMEOUT",
        kind=kinds.SECONDS,
        help="Fail after this many seconds without progress.",
        default=1800.0,
        uses=_in(
            *JOBS,
            ray=Use(help="Seconds for actors to start and answer, and for ranks to connect.", default=300.0),
        ),
    ),
    Setting(
        name="placement_group_timeout_s",
        flag="",
        kind=kinds.SECONDS,
        help="Seconds for Ray to place the actors.",
        default=100.0,
        uses=_in(RAY),
    ),
    Setting(
        name="grace_s",
        flag="--grace",
        kind=kinds.SECONDS,
        help="Seconds that other ranks get to exit after a failure.",
        default=5.0,
        uses=_in("run", EMULATE_RUN, RAY),
    ),
    Setting(
        name="nics",
        flag="",
        kind=kinds.NICS,
        help="Network that all nodes have: an interface (eth0) or a subnet (10.0.0.0/24).",
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
        help="Network between ranks: eth0, 10.0.0.0/24, or an address of this machine.",
        default_words="loopback; several hosts: towards rank 0",
        uses=_in("run", JOIN),
    ),
    Setting(
        name="secret",
        flag="",
        variable="PACELINE_SECRET",
        kind=kinds.SECRET,
        help="Secret that all ranks share, of at least 16 characters.",
        default_words="none; a random one under `paceline run`",
        is_secret=True,
        uses=_in(JOIN),
    ),
    Setting(
        name="secret_file",
        flag="",
        variable="PACELINE_SECRET_FILE",
        kind=kinds.SECRET_FILE,
        help="File with the secret, readable only by its owner.",
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
        help="Write a timeline of all ranks, for paceline doctor.",
        uses=_in(*JOBS),
    ),
    Setting(
        name="as_gloo",
        variable="PACELINE_AS_GLOO",
        kind=kinds.SWITCH,
        help='Run process groups of backend "gloo" on Paceline (docs/how-to/unchanged-programs.md).',
        default=False,
        uses=_in("run", EMULATE_RUN),
    ),
    Setting(
        name="verbose",
        variable="PACELINE_VERBOSE",
        kind=kinds.SWITCH,
        help="Print where ranks run, and the strategies chosen.",
        default=False,
        uses=_in(*JOBS),
    ),
    # Only of commands: of recordings, measurements and the search of `advise`.
    Setting(
        name="model",
        kind=kinds.TEXT,
        help="torchvision classification model, on random images: resnet50.",
        uses=_in(
            "record",
            bench=Use(help="torchvision model, or mlp or cnn.", default_words="resnet50"),
            **dict.fromkeys(("simulate", "advise", "report", SIMULATE, SWEEP), _MODEL_OF_A_FILE),
        ),
    ),
    Setting(
        name="name",
        kind=kinds.PRINTABLE,
        help="Name of the trace.",
        uses=_in(
            record=Use(default_words="the model's"),
            import_kineto=Use(default_words="the first file's"),
            import_chakra=Use(default_words="the file's"),
            import_sends=Use(required=True),
            import_tensorflow=Use(default_words="the first file's"),
        ),
    ),
    Setting(
        name="warmup",
        kind=kinds.whole(0, 100_000),
        help="Warm-up steps to skip.",
        default_words="3; --gpu: 2",
        uses=_in("record", replay=Use(kind=kinds.whole(1, 1000), help="Warm-up iterations to skip.", default=2)),
    ),
    Setting(
        name="steps",
        kind=kinds.whole(1, 100_000),
        help="Steps to record; the trace has their medians.",
        default_words="10; --gpu: 1",
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
        help="With --model: image height and width in pixels.",
        default_words="224; inception_v3: 299",
        uses=_in(
            "record",
            bench=Use(help="Image height and width in pixels.", default_words="224; mlp, cnn: 32; inception_v3: 299"),
        ),
    ),
    Setting(
        name="stop_when_recorded",
        kind=kinds.SWITCH,
        help="End the script when the trace is complete.",
        default=False,
        uses=_in("record"),
    ),
    Setting(
        name="forward",
        kind=kinds.DURATION,
        help="Forward time: 176ms.",
        uses=_in(
            import_chakra=Use(help="Forward time, if node names do not tell: 176ms."),
            import_sends=Use(required=True),
        ),
    ),
    Setting(
        name="repeats",
        kind=kinds.whole(1, 1000),
        help="Repeats of each transfer.",
        default_words="5; --quick: 3",
        uses=_in(
            "probe",
            validate=Use(help="Iterations per cell."),
            emulate_check=Use(help="Measurements, of which the median counts.", default=5),
        ),
    ),
    Setting(
        name="racks",
        kind=kinds.whole(1, MOST_EMULATED),
        help="Racks to divide the workers among.",
        default=1,
        uses=_in("emulate up", EMULATE_RUN, validate=Use(help="Racks to divide the hosts among.")),
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
        help="Divide tensor sizes by X.",
        default=1.0,
        uses=_in("replay", validate=Use(kind=kinds.or_auto(_SHRINK), default=None, default_words="auto")),
    ),
    Setting(
        name="scale",
        kind=_SCALE,
        help="Multiply times by X.",
        default=1.0,
        uses=_in("replay", validate=Use(kind=kinds.or_auto(_SCALE), default=None, default_words="auto")),
    ),
    Setting(
        name="global_batch",
        kind=kinds.GLOBAL_BATCH,
        help="Global batch size: 1024, or 1k.",
        default_words="free",
        uses=_in("advise"),
    ),
    Setting(
        name="objective",
        kind=kinds.choice(("throughput", "cost")),
        help="Best among several --gpus or machines: throughput or cost.",
        default="throughput",
        uses=_in("advise"),
    ),
    Setting(
        name="price",
        kind=kinds.PRICES,
        help="Price per GPU and hour, 2.50 or h100:2.50,b200:5: adds cost.",
        default_words="the instance's, if known",
        uses=_in("advise"),
    ),
    Setting(
        name="tokens",
        kind=kinds.TOKENS,
        help="Tokens to train on, 1e9 or 15T: adds time, and cost of them.",
        uses=_in("advise"),
    ),
    Setting(
        name="mtbf",
        kind=kinds.LONG_TIME,
        help="Mean time to failure of the whole job, 8h: adds goodput.",
        uses=_in("advise"),
    ),
    Setting(
        name="checkpoint_seconds",
        kind=kinds.POSITIVE_SECONDS,
        help="Seconds that training waits for a checkpoint.",
        uses=_in("advise"),
    ),
    Setting(
        name="restart_seconds",
        kind=kinds.number(0, 30 * 86_400.0, "seconds, 0 to 30 days", "SECONDS"),
        help="Seconds from a failure until training resumes.",
        default_words="--checkpoint-seconds",
        uses=_in("advise"),
    ),
    Setting(
        name="top",
        kind=kinds.whole(1, 1000),
        help="Rows per number of GPUs.",
        default=5,
        uses=_in("advise"),
    ),
)
SETTINGS: Mapping[str, Setting] = {setting.name: setting for setting in _ALL}
"""By name."""
OFF: Mapping[str, str] = {
    **dict.fromkeys(("offload", "quantize", "lora", "loss_chunks", "checkpointing", "sharding"), kinds.NONE),
    **dict.fromkeys(("tensor_parallel", "pipeline_parallel", "context_parallel", "expert_parallel"), "1"),
    **dict.fromkeys(("accumulate", "virtual_stages"), "1"),
    "loss": "lm",
}
"""Values that switch off what a trainer's file switches on."""
SECTIONS: Mapping[str, Sequence[str]] = {
    "Trace or model": (
        *("model", "dtype", "measured", "device", "samples_per_s", "compute_speedup", "add_module", "send_order"),
    ),
    "Model details": (
        "power_limit",
        "precision",
        "checkpointing",
        "attention",
        *("kernels", "cuda_graphs"),
        "optimizer_impl",
        *("moment_dtype", "loss_chunks", "loss_dtype"),
        *("offload", "loss", "real_tokens"),
        *("lora", "dora", "lora_dropout", "quantize", "modules_to_save", "freeze"),
    ),
    "Parallelism": (
        *("tensor_parallel", "pipeline_parallel", "virtual_stages", "microbatches"),
        *("context_parallel", "expert_parallel", "expert_dispatch"),
    ),
    "Sharding, accumulation and memory": (
        *("reshard_after_forward", "prefetch", "unit", "param_dtype", "reduce_dtype"),
        *("accumulate", "accumulate_sync", "optimizer", "memory"),
    ),
    "Network and cluster": (
        *("latency", "channel", "gpus_per_node", "intra_bandwidth", "stragglers", "degraded", "network"),
    ),
    "Gradient sync details": (
        *("library", "bucket_size", "chunk", "compression", "sync_every", "inside"),
        *("servers", "placement", "distribution", "pull", "staleness", "coordinator", "coordinator_constants"),
    ),
    "Simulation": ("barrier", "overlap", "iterations", "seed", "executor", "baseline"),
}
"""Sections in the help of forecasts, for settings that are not among a command's basic ones."""
CORE: Sequence[str] = tuple(one.name for one in _ALL if one.part == "core")
"""Options of every scenario of a sweep."""
SWEPT_KNOBS: Sequence[str] = tuple(one.name for one in _ALL if one.part == "knob")
"""Options of scenarios of which a sweep takes several values, each for the strategies that use it."""
SWEPT: Sequence[str] = tuple(
    one.name for one in _ALL if SWEEP in one.uses and one.kind_of(SWEEP).is_list and one.part in ("", "swept", "knob")
)
"""Those of which a sweep takes several values."""
_TOGETHER = ("modules_to_save", "freeze")
"""Lists whose values hold all at once."""
EACH: Sequence[str] = (
    *(
        one.name
        for one in _ALL
        if SWEEP in one.uses
        and one.kind_of(SWEEP).is_list
        and one.part in ("cluster", "trace", "each")
        and one.name not in _TOGETHER
    ),
    "cluster",
)
"""Those of which each value makes a sweep of its own: it changes the traces or the cluster, or is one."""
LEAST_START_S = 60.0
"""How long ranks wait for each other at the start, at least, if that is not given."""
CLUSTER_FIELDS: Mapping[str, str] = {
    "name": "str",
    "provenance": "str",
    "efficiency": "float",
    "stream_bandwidth": "str",
    "node_contention": "float",
    "gpus_per_rank": "int",
    "nics_per_node": "int",
    "gpudirect": "bool",
    "nccl_plugin": "str",
    "nccl_sockets": "dict[str, int]",
    "intra_link": 'Literal["nvswitch", "nvlink", "xgmi", "pcie"]',
    "peer_access": "bool",
    "sockets": "int",
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
                f"means the same as {setting.source(given_by).name}",
                setting=setting.name,
                source=source,
                remedy="drop {this}",
            )
        values[setting.name], sources[setting.name] = value, source
    return values, sources


def find(name: str, known: Sequence[str] | None = None) -> Setting:
    """Return the setting of this name among `known`. Raises InvalidArgumentError, which suggests a similar name."""
    candidates = list(SETTINGS if known is None else known)
    if name in candidates:
        return SETTINGS[name]
    near = nearest(name, candidates)
    raise InvalidArgumentError(
        f"unknown setting '{name[:80]}'", remedy=near or f"one of {', '.join(candidates[:8])}, …"
    )


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
