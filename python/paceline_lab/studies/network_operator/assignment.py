"""TensorFlow's assignment of tensors to servers in the authors' runs: round-robin over variables in creation order.

The published byte shares of the least and most loaded server show which variables there were in addition to the tensors
of the traces, among them the moving averages of batch normalization:

- VGG-16 (0.918 on the most loaded of 4 servers, 0.859 of 8): four variables per convolution, as with batch
  normalization, and two per fully connected layer. Then one server of 4 holds everything except fc7.
- ResNets (0.165 and 0.33 of 4 servers, 0.002 on the least loaded of 8): the variables of slim's resnet_v2, 16 per unit.
  Then one server of 4 or 8 holds the 3x3 convolutions of a whole block.
- Inception-v3 (0.451 published for 4 servers, 0.292 for 8): four variables per convolution, and the auxiliary head's
  ten after Mixed_6e. Then two servers of 4 hold all weights; with the whole head (13 MB), one holds 0.451 of the bytes.
"""

from __future__ import annotations

from paceline import Trace

# Positions of a unit's variables: a batch normalization has gamma, beta and two moving averages.
_NORMALIZATION = 4
_UNIT = 16
_SHORTCUT = 2
# Two convolutions and a fully connected layer.
_HEAD = 10
_AFTER_HEAD = "Mixed_7a/Branch_0/Conv2d_0a_1x1/weights"


def tensorflow_servers(model: str, trace: Trace, servers: int) -> list[int]:
    """Return the server of each bucket of the trace, in order."""
    names = [bucket[0] for bucket in trace.buckets()]
    places = _resnet_places(names) if model.startswith("resnet") else _convolution_places(names)
    return [places[name] % servers for name in names]


def _convolution_places(names: list[str]) -> dict[str, int]:
    """Return variable numbers where a convolution has four variables and a fully connected layer two."""
    places: dict[str, int] = {}
    following, last = 0, 0
    for name in names:
        if name == "AuxLogits":  # has no gradient, so it comes last here
            places[name] = places[_AFTER_HEAD] - _HEAD
        elif name.endswith("weights"):
            last = following + (_HEAD if name == _AFTER_HEAD else 0)
            places[name] = last
            following = last + (2 if name.startswith(("fc", "Logits")) else 4)
        else:
            places[name] = last + 1
    return places


def _resnet_places(names: list[str]) -> dict[str, int]:
    """Return the number of the slim resnet_v2 variable at a tensor's position."""
    places: dict[str, int] = {}
    base = 2  # conv1 has a weight and a bias
    unit, size = "", 0
    for name in names:
        head, _, tail = name.rpartition("/conv")
        head = name.partition("/shortcut")[0] if "/shortcut" in name else head
        if not name.startswith("block"):
            # conv1 and, after the last unit, postnorm and the fully connected layer.
            places[name] = (0 if name.endswith("weights") else 1) + (base + size + 4 if "logits" in name else 0)
            continue
        if head != unit:
            base, unit = base + size, head
            size = _UNIT + (_SHORTCUT if head.endswith("unit_1") else 0)
        first = base + _NORMALIZATION
        if "/shortcut" in name:
            places[name] = first + (0 if name.endswith("weights") else 1)
            continue
        convolution = int(tail[0]) - 1
        within = 0 if name.endswith("weights") else 1 if name.endswith("gamma") else 2
        if convolution == 2:
            within = min(within, 1)
        places[name] = first + size - _UNIT + convolution * (1 + _NORMALIZATION) + within
    return places


def byte_shares(model: str, trace: Trace, servers: int) -> list[float]:
    """Return each server's share of the bytes, counting tensors with and without a gradient."""
    sizes = {gradient.tensor: gradient.bytes for gradient in trace.workers[0].gradients}
    if model == "inception-v3":  # The bytes without a gradient are a variable, the auxiliary head.
        sizes |= {entry.tensor: entry.bytes for entry in trace.distribution if entry.bytes is not None}
    held = [0] * servers
    for bucket, server in zip(trace.buckets(), tensorflow_servers(model, trace, servers), strict=True):
        held[server] += sum(sizes.get(name, 0) for name in bucket)
    return [one / sum(held) for one in held]
