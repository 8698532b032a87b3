"""NCCL's collectives: what it chooses, and how long they take.

| module | contents |
| --- | --- |
| machine | a cluster as NCCL sees it, and a group of its ranks |
| tuning | NCCL's own model of the time, with which it chooses algorithm and protocol |
| model | `collective_time`: the choice, and the calibrated time |
| request | `allreduce:8B-16GB` on a cluster, as `paceline simulate` takes it |
| table | results as nccl-tests prints them, and their plot |
"""

from paceline.forecast.nccl.machine import Group, Machine
from paceline.forecast.nccl.model import CollectiveTime, collective_time

__all__ = ["CollectiveTime", "Group", "Machine", "collective_time"]
