"""Training through Ray's object store, as Ray's distributed SGD was published: the engine `ray-ps`.

Every worker holds a replica of the model. In each step the gradients of a node are added up at one of its workers, the
root, to which the others send theirs; the sum is cut into one shard for each parameter server, which adds up what the
roots send and gives every worker the mean. Workers run the optimizer. All tensors pass through Ray's object store; the
runtime of `paceline.job` has no part in it.

| module | holds |
| --- | --- |
| train | train: the actors, and the steps as one graph of calls after the other |
| replica | a worker |
| shard | a parameter server, and how a gradient is cut |
| result | what a training gives |
"""

from paceline.ray.ps.replica import StepTimes, Trained
from paceline.ray.ps.train import train

__all__ = ["StepTimes", "Trained", "train"]
