"""An emulated cluster on this machine: network namespaces as hosts, with NICs of a given rate.

    from paceline_lab import emulate

    with emulate.cluster(workers=4, servers=2, bandwidth_bps=500e6) as cluster:
        code = cluster.run([sys.executable, "train.py"], strategy="ps")

Needs Linux, pyroute2 (the extra `emulate`), and root or user namespaces. docs/how-to/emulate.md explains
what such a cluster is good for.

| module | contents |
| --- | --- |
| cluster | `cluster`: bringing a cluster up, starting processes on its hosts, taking it down |
| job | ranks and servers on hosts, started as by `paceline run` |
| fidelity, stream | how well the network keeps its rate; the processes that measure it |
| plan | hosts and addresses |
| shaping | token buckets for a rate |
| holder | the process that holds the namespaces |
| network | namespaces, bridge, NICs and their queues |
| enter | runs a command on a host |
| state, processes, down | which clusters exist, what runs on them, and stopping it |
"""

from paceline._internal.lazy import public_names
from paceline.launch.output import Collected, Discarded

from paceline_lab.emulate.cluster import Cluster, cluster
from paceline_lab.emulate.errors import CannotEmulateError, ClusterError
from paceline_lab.emulate.plan import Host

__all__ = ["CannotEmulateError", "Cluster", "ClusterError", "Collected", "Discarded", "Host", "cluster"]

__dir__ = public_names(__name__)
