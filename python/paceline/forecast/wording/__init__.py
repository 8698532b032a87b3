"""The words of forecasts: what a forecast knows as values is put into sentences here.

| module | contents |
| --- | --- |
| terms | parts, resources, changes, evidence, the core's notes; needs no result |
| notes | what a request was made into |
| rows | what a row, its ranks and its network are called, and its interval |
| bottleneck, sharding, verdict, explanation | what bounds an iteration, memory, the verdict, changes |
| advise, jobs, nccl | `paceline advise`, several jobs, NCCL's collectives |
"""
