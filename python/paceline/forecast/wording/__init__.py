"""The words of forecasts: values become headlines, facts with labels, and notes here.

| module | contents |
| --- | --- |
| terms | parts, resources, changes, evidence, the core's notes; needs no result |
| labels | names of resources, changes and configurations in `--json`, which stay |
| notes | assumptions, and what was skipped |
| rows | names of a row, its ranks and its network, and its interval |
| bottleneck, sharding | bottleneck, memory and exposed communication |
| remedies | changes with which a job fits that does not |
| verdict, explanation | the answers of `paceline simulate`, and of its `--explain` |
| advise, jobs, nccl | `paceline advise`, several jobs, NCCL's collectives |
"""
