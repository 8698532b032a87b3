"""A cluster of network namespaces on this machine: hosts with addresses of their own, cards of a given rate.

    from paceline import emulate

    with emulate.cluster(workers=4, servers=2, bandwidth_bps=500e6) as cluster:
        code = cluster.run([sys.executable, "train.py"], strategy="ps")

Needs Linux, pyroute2 (`pip install 'paceline[emulate]'`), and root or user namespaces. docs/how-to/emulate.md says what
such a cluster is good for.

| module | holds |
| --- | --- |
| cluster | `cluster`: bringing up, starting processes on hosts, taking down |
| job | ranks and servers on hosts, by the launcher of `paceline run` |
| fidelity, stream | how well the network keeps to its rate; the processes that find out |
| plan | hosts and addresses |
| shaping | token buckets for a rate |
| holder | the process that holds the namespaces |
| network | namespaces, bridge, cards |
| enter | runs a command on a host |
| state, processes, down | which clusters are there, what runs on them, and ending it |
"""

from paceline.emulate.cluster import Cluster, cluster
from paceline.emulate.errors import CannotEmulateError, ClusterError
from paceline.emulate.plan import Host
from paceline.launch.output import Collected, Discarded

__all__ = ["CannotEmulateError", "Cluster", "ClusterError", "Collected", "Discarded", "Host", "cluster"]
