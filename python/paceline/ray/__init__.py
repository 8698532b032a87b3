"""Training on a Ray cluster, with ranks and parameter servers as actors and the names of `horovod.ray`.

    from paceline.ray import RayExecutor

    with RayExecutor(num_workers=4) as executor:
        losses = executor.run(train)

| module | contents |
| --- | --- |
| executor | RayExecutor: start, run, run_remote, execute, shutdown |
| elastic | ElasticRayExecutor: actors that die are replaced; which nodes have room |
| settings, layout | time limits and network; numbers of workers, and their resources |
| cluster | the choice of the Ray cluster |
| bundles, group, environment | placement groups; the actors in them; their environment variables |
| worker, calls | the actors; calls of several actors, and their first failure |
| ps | training through Ray's object store: reduction inside the node, servers sharded over the nodes |

Ray is imported only when it is needed.
"""

from paceline._internal.lazy import public_names
from paceline.ray.cluster import MissingRayError
from paceline.ray.elastic import ElasticRayExecutor
from paceline.ray.executor import RayExecutor
from paceline.ray.settings import RaySettings

__all__ = ["ElasticRayExecutor", "MissingRayError", "RayExecutor", "RaySettings"]

__dir__ = public_names(__name__)
