"""Training on a Ray cluster: ranks and parameter servers as actors, with the names of `horovod.ray`.

    from paceline.ray import RayExecutor

    with RayExecutor(num_workers=4) as executor:
        losses = executor.run(train)

| module | holds |
| --- | --- |
| executor | RayExecutor: start, run, run_remote, execute, shutdown |
| elastic, member, slots | ElasticRayExecutor: actors that die are replaced; which nodes have room |
| settings, layout | limits and network; how many workers, and what each takes |
| cluster | which Ray cluster |
| bundles, group, environment | placement groups; actors in them; what they find in their environment |
| worker, calls | the actors; calls of several of them, and who failed first |
| ps | training through Ray's object store: reduction inside the node, servers sharded over the nodes |
| pool | forecasts as Ray tasks, for `paceline simulate --executor ray` |

Nothing here imports Ray before it is needed.
"""

from paceline.ray.cluster import MissingRayError
from paceline.ray.elastic import ElasticRayExecutor
from paceline.ray.executor import RayExecutor
from paceline.ray.settings import RaySettings

__all__ = ["ElasticRayExecutor", "MissingRayError", "RayExecutor", "RaySettings"]
