"""The built-in traces and clusters, and loading traces and clusters by name or from a file."""

from __future__ import annotations

import contextlib
import json
import os
import re
from functools import lru_cache
from pathlib import Path
from typing import Any

from paceline._core import Cluster, Trace
from paceline._internal.documents import MB, read_json
from paceline._internal.nearest import alike, nearest
from paceline._internal.units import listed, shown
from paceline.catalog.builtin_names import CLUSTERS, COLLECTIVES, TRACES, built_in, key
from paceline.catalog.strategies import unknown
from paceline.errors import InvalidArgumentError

_LARGEST_FILE = 256 * MB
_OF_NCCL_TESTS = re.compile(r"(\d+(?:\.\d+)?)([KMGkmg])(?=/|$)")
_NO_UNIT = re.compile(r"^(\d+)$")
_FLAT = b'{"format":"paceline-cluster","version":1,"name":"flat","bandwidth":"25Gbps","channel":"auto"}'


def load_trace(source: str | Path | Trace) -> Trace:
    """Load a trace.

    Args:
        source: A file in the trace format (docs/reference/trace-format.md), the name of a built-in trace (`resnet50`
            and `resnet-50` are the same), one with a GPU whose rate is known (`vgg-16@titan-x-pascal`), a model or
            config.json with a GPU, as in `llama-3-8b@h100:seq=4096,batch=2`
            (docs/explanation/roofline.md), `allreduce:SIZE[/COUNT]` for gradients without compute, or a `Trace`,
            which is returned unchanged.

    Returns:
        The trace.

    Raises:
        InvalidArgumentError: There is no such file or name, or the file is malformed; the message names the field.

    Example:
        >>> trace = paceline.load_trace("resnet50")
        >>> len(trace.buckets())  # one for each of its gradients
        161
    """
    if isinstance(source, Trace):
        return source
    if isinstance(source, str) and not source:
        raise InvalidArgumentError("the name of a trace is empty", remedy="paceline list traces")
    if isinstance(source, str) and source.startswith("allreduce"):
        return Trace.all_reduce(as_nccl_tests(source.encode(errors="replace").decode()))
    if isinstance(source, str) and source.partition(":")[0] in COLLECTIVES and ":" in source:
        raise InvalidArgumentError(
            f"{source:.80}: only all-reduces are simulated as traces",
            remedy=f"paceline simulate {source:.80} --cluster dgx-h100 (Python: paceline.forecast.nccl)",
        )
    from paceline.catalog.models.names import of_script
    from paceline.catalog.models.spec import find_workload

    workload = find_workload(source)
    if workload is not None:
        return workload.trace()
    if isinstance(source, str) and "@" in source and not Path(source).exists():
        return _on_gpu(source)
    path = _file_of("trace", source, TRACES)
    try:
        return Trace.read(path)
    except InvalidArgumentError:
        if path.suffix == ".py":
            script = of_script(path)
            raise script from None
        if _begins(path, b'"traceEvents"'):
            raise InvalidArgumentError(
                f"{path!s:.200}: is a timeline, not a trace",
                remedy=f"paceline doctor {path!s:.80}, or paceline run -np 1 --record mine.json -- python train.py",
            ) from None
        raise


def _on_gpu(word: str) -> Trace:
    """Return a recording on a GPU: `vgg-16@titan-x-pascal`. Raises InvalidArgumentError."""
    from paceline.catalog.rates import device_rate, on_device

    name, _, gpu = word.partition("@")
    trace = load_trace(name)
    rate = device_rate(trace, gpu)
    changes = f"; scaled to {rate.cited}"
    return on_device(trace, gpu).replace(name=word, device=rate.measured_on, provenance=trace.provenance + changes)


def as_nccl_tests(word: str) -> str:
    """Return `allreduce:1M-1G` with the units that nccl-tests means: K, M and G are powers of 1,024, no unit bytes.

    `1MB` is 1,000,000 bytes, as everywhere else. A number without a unit stands for bytes beside one of these only.
    """
    kind, colon, text = word.partition(":")
    sizes = text.split("-")
    if not colon or not any(_OF_NCCL_TESTS.match(size) for size in sizes):
        return word
    return kind + colon + "-".join(_NO_UNIT.sub(r"\1B", _OF_NCCL_TESTS.sub(_binary, size)) for size in sizes)


def _binary(match: re.Match[str]) -> str:
    return f"{match[1]}{match[2].upper()}iB"


def _begins(path: Path, word: bytes) -> bool:
    """Return whether a word is near the begin of a regular file: a pipe may have nobody who writes."""
    with contextlib.suppress(OSError):
        if path.is_file():
            with path.open("rb") as file:
                return word in file.read(1 << 12)
    return False


def _file_of(kind: str, source: str | Path, folder: Path) -> Path:
    """Return the file that a word names, directly or as a built-in name. Errors suggest a similar name."""
    if not isinstance(source, str | Path):
        raise InvalidArgumentError(f"{shown(source, repr)} is not text", setting=kind, remedy=f"paceline list {kind}s")
    path = Path(source)
    try:
        os.fsencode(path)
        exists = path.exists()
    except UnicodeEncodeError:
        raise InvalidArgumentError(
            f"unknown {kind} '{source!s:.80}': the name is not text that a file may have",
            remedy=f"paceline list {kind}s",
        ) from None
    except (OSError, ValueError):  # too long, or contains a NUL
        exists = False
    if isinstance(source, str) and not exists:
        names = built_in(folder)
        for name, file in names.items():
            if key(name) == key(source):
                return file
        # `p5` is p5.48xlarge.
        for name, file in names.items():
            if key(name.partition(".")[0]) == key(source):
                return file
        if "/" not in source and path.suffix != ".json":
            if kind == "trace" and re.fullmatch(r"[^:@]+:\d.*", source):
                raise _unknown_collective(source)
            if kind == "trace":
                raise _unknown_trace(source)
            from paceline.catalog.instances import instance_names

            near = nearest(source, [*names, *(instance_names() if kind == "cluster" else ())])
            raise unknown(kind, source, [near] if near else [], f"paceline list {kind}s")
    return path


def _unknown_trace(source: str) -> InvalidArgumentError:
    """Return the error about a name that is neither a recording nor a model, which either may have been meant."""
    from paceline.catalog.models.config import built_in_configs

    both = list(dict.fromkeys([*built_in(TRACES), *built_in_configs()]))
    return unknown("trace", source, alike(source, both), "paceline list traces, paceline list models")


def _unknown_collective(source: str) -> InvalidArgumentError:
    """Return the error about a word such as `all-gather:1GB`."""
    word, _, size = source.partition(":")
    meant = next((kind for kind in COLLECTIVES if kind == key(word)), None)
    known = [f"{kind}:{size:.40}" for kind in ([meant] if meant else COLLECTIVES)]
    return InvalidArgumentError(
        f"unknown collective '{word:.40}'", remedy=f"{listed(known, 'or')} (NCCL's, with {{cluster=dgx-h100}})"
    )


def load_cluster(source: str | Path | Cluster | None = None, **overrides: object) -> Cluster:
    """Load a cluster and override some of its fields.

    Args:
        source: A file in the cluster format (docs/reference/cluster-format.md), the name of a built-in cluster, or a
            `Cluster`. The default has nodes with one GPU each and links of 25 Gbps over
            TCP.
        **overrides: Fields of the cluster format, such as `bandwidth="10Gbps"` (bits per second per node, each way),
            `latency="10us"` or `gpus_per_node=4`. `None` leaves a field unchanged.

    Returns:
        The cluster.

    Raises:
        InvalidArgumentError: There is no such file or name, the file is malformed, or a field is unknown or invalid.

    Example:
        >>> cluster = paceline.load_cluster(bandwidth="10Gbps", gpus_per_node=4)
        >>> paceline.simulate("resnet-50", cluster, workers=8).bandwidth_bps
        10000000000.0
    """
    if isinstance(source, Cluster):
        cluster = source
    elif source is None:
        cluster = Cluster.from_json(_FLAT, "flat")
    else:
        cluster = _named_cluster(source)
    changes = {field: value for field, value in overrides.items() if value is not None}
    if not changes:
        return cluster
    for field, value in changes.items():
        try:
            json.dumps(value)
        except (TypeError, ValueError, RecursionError):
            raise InvalidArgumentError(
                f"{shown(value, repr)} cannot be in a cluster file",
                setting=field,
                remedy="text, a number, or a list or dict of them",
            ) from None
    return cluster.with_fields(json.dumps(changes))


_UNMEASURED = "no network was measured"


def _named_cluster(source: str | Path) -> Cluster:
    if source == "":
        raise InvalidArgumentError("the name of a cluster is empty", remedy="paceline list clusters")
    if (document := _rented(source)) is not None:
        return Cluster.from_json(json.dumps(document).encode(), str(source))
    path = _file_of("cluster", source, CLUSTERS)
    return _built_in_cluster(path) if path.parent == CLUSTERS else _cluster_of(path)


def _cluster_of(path: Path) -> Cluster:
    if _is_list(path):
        return Cluster.from_json(json.dumps(_only(path)).encode(), str(path))
    cluster = Cluster.read(path)
    # Files of `paceline probe` before 0.3.0 say it in words.
    return cluster.replace(bandwidth_measured=False) if _UNMEASURED in cluster.provenance else cluster


_built_in_cluster = lru_cache(maxsize=64)(_cluster_of)
"""Those of the package do not change."""


def _rented(source: str | Path) -> dict[str, Any] | None:
    """Return the file of a cluster of a cloud's instances; None for what is no instance, or a built-in cluster."""
    from paceline.catalog.instances import find_instance

    # A file of this name comes first, as for built-in clusters.
    if not isinstance(source, str) or (instance := find_instance(source)) is None or Path(source).exists():
        return None
    return None if instance.is_cluster else instance.document()


def cluster_text(source: str | Path) -> str:
    """Return the file of a cluster, with the fields that it gives and no others: a copy of it means the same.

    Raises InvalidArgumentError.
    """
    if (document := _rented(source)) is not None:
        return json.dumps(document, indent=1, ensure_ascii=False)
    whole = _named_cluster(source).to_json()
    path = _file_of("cluster", source, CLUSTERS)
    if not path.is_file() or _is_list(path):
        return whole
    return json.dumps(read_json(path, _LARGEST_FILE), indent=1, ensure_ascii=False)


def _is_list(path: Path) -> bool:
    """Return whether a regular file begins as a JSON list, as `paceline list clusters --json` prints it."""
    with contextlib.suppress(OSError):
        if path.is_file():
            with path.open("rb") as file:
                return file.read(1 << 12).lstrip().startswith(b"[")
    return False


def _only(path: Path) -> object:
    """Return the only cluster of a list. Raises InvalidArgumentError for several."""
    listed = read_json(path, _LARGEST_FILE)
    if not isinstance(listed, list) or len(listed) != 1:
        what = f"a list of {len(listed)} clusters" if isinstance(listed, list) else "no JSON object"
        raise InvalidArgumentError(
            f"{path!s:.200}: must be one cluster, not {what}", remedy="paceline list clusters NAME --export mine.json"
        )
    return listed[0]


def fields_given(source: str | Path | Cluster | None) -> frozenset[str]:
    """Return which fields a cluster's file gives: `"0s"` counts. A `Cluster`, a pipe and a list do not tell.

    A list is what `paceline list clusters --json` prints, with all fields.

    The file is one that `load_cluster` has accepted.
    """
    if source is None or isinstance(source, Cluster):
        return frozenset()
    if (document := _rented(source)) is not None:
        return frozenset(document)
    path = _file_of("cluster", source, CLUSTERS)
    if not path.is_file():
        return frozenset()
    return frozenset() if _is_list(path) else frozenset(read_json(path, _LARGEST_FILE))


def totals(trace: Trace) -> dict[str, Any]:
    """Return a trace's totals as `--json` prints them."""
    return {
        "name": trace.name,
        "provenance": trace.provenance,
        "device": trace.device,
        "library": trace.library,
        "batch": trace.batch,
        "dtype": trace.dtype,
        "layers": trace.layer_count,
        "tensors": trace.tensor_count,
        "gradient_bytes": trace.gradient_bytes,
        "frozen_bytes": trace.frozen_bytes,
        "optimizer_bytes": trace.optimizer_bytes,
        "accumulates": trace.accumulates,
        "forward_s": trace.forward_s,
        "backward_s": trace.backward_s,
        "optimizer_s": trace.optimizer_s,
        "recorded_workers": trace.worker_count,
    }


def cluster_document(cluster: Cluster) -> dict[str, Any]:
    """Return a cluster as `--json` prints it: the content of its file."""
    text = cluster.to_json()
    document: dict[str, Any] = json.loads(text)
    return document


NO_NETWORK = "no network was measured, because all ranks are on one host"
"""Of a probe, where `bandwidth_measured` is false."""
