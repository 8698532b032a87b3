"""Table 7: the bytes on the least and the most loaded server, with variables placed in the order of creation.

The order is the trace's (`variables`), which has the moving averages of batch normalization:

- VGG-16: four variables per convolution, two per fully connected layer. One server of 4 holds everything except fc7.
- ResNets: those of slim's resnet_v2, 16 per unit. One server of 4 or 8 holds the 3x3 convolutions of a whole block.
- Inception-v3: four per convolution, and the auxiliary head's ten after Mixed_6e. Two servers of 4 hold all weights.
"""

from __future__ import annotations

from collections.abc import Iterator

from paceline import Trace

from paceline_lab.studies.network_operator.published import TITLES
from paceline_lab.studies.network_operator.runs import Simulations
from paceline_lab.studies.report import Compared

_PUBLISHED = {
    ("vgg-16", 4): (4e-5, 0.918),
    ("vgg-16", 8): (1e-5, 0.859),
    ("inception-v3", 4): (0.0007, 0.451),
    ("inception-v3", 8): (0.0003, 0.292),
    ("resnet-200", 4): (0.165, 0.33),
    ("resnet-200", 8): (0.002, 0.22),
}
"""By model and servers: the shares of the least and the most loaded one."""
_NO_WEIGHTS = "without_gradient"
"""Bytes that ResNet-200's servers distribute by calibration; no variable is known to have them."""

SECOND_MOST = (
    "Table 7: for 4 servers of Inception-v3 and 8 of ResNet-200 the published share is the second most loaded "
    "server's. The times in Table 1 are those of the most loaded one."
)


def weight_shares(trace: Trace, servers: int) -> list[float]:
    """Return each server's share of the bytes of all variables, of which number i is on server i modulo `servers`."""
    sizes = {gradient.tensor: gradient.bytes for gradient in trace.workers[0].gradients}
    sizes |= {entry.tensor: entry.bytes for entry in trace.distribution if entry.bytes is not None}
    held = [0] * servers
    for number, variable in enumerate(trace.variables):
        if variable.tensor != _NO_WEIGHTS:
            held[number % servers] += sizes[variable.tensor] if variable.bytes is None else variable.bytes
    return [one / sum(held) for one in held]


def compared(simulations: Simulations) -> Iterator[Compared]:
    """Yield the published shares with those of the traces."""
    for (model, servers), published in _PUBLISHED.items():
        shares = weight_shares(simulations.trace(model), servers)
        for which, value, own in zip(("least", "most"), published, (min(shares), max(shares)), strict=True):
            row = f"{servers} servers, {which} loaded"
            yield Compared("Table 7", row, TITLES[model], value, own, "", calibrated=False)
