"""NCCL's collectives: what it chooses, and how long they take.

The model itself is the crate `nccl`.

| module | contents |
| --- | --- |
| model | `collective_time`: the choice, and the calibrated time; the times of a plan's collectives |
| request | `allreduce:8B-16GB` on a cluster, as `paceline simulate` takes it |
| table | results as nccl-tests prints them, and their plot |
"""

from paceline.forecast.nccl.model import CollectiveTime, Estimate, Group, Machine, collective_time, estimates

__all__ = ["CollectiveTime", "Estimate", "Group", "Machine", "collective_time", "estimates"]
