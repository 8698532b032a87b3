"""Training through Ray's object store, as Ray's distributed SGD was published: the engine `ray-ps`.

Every worker holds a replica of the model. In each step the gradients of a node are summed at one of its workers, the
root; the sum is cut into one shard for each parameter server, which sums the roots' shards and returns the mean to
every worker. Workers run the optimizer. All tensors pass through Ray's object store; the runtime of `paceline.job` is
not used.

| module | contents |
| --- | --- |
| train | train: the actors, and the steps as chained calls |
| asynchronous | asynchronous training: servers that apply each gradient, and workers that wait for nobody |
| replica | a worker; a parameter server, and the cutting of gradients; the result of training |
"""

from paceline._internal.lazy import public_names
from paceline.ray.ps.replica import StepTimes, Trained
from paceline.ray.ps.train import train

__all__ = ["StepTimes", "Trained", "train"]

__dir__ = public_names(__name__)
