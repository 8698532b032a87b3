"""Rates and latencies of a cluster's network and machines, measured by the ranks of a job: `paceline probe`.

Rank 0 sends requests, all ranks carry them out and answer; all transfers are sends and receives of the runtime.
docs/how-to/probe.md says what is measured, and what the cluster file contains.

| module | contents |
| --- | --- |
| layout | the hosts of the job, and the ranks on each |
| measure, patterns | all measurements; who sends to whom in each |
| rpc, worker | requests of rank 0; how a rank carries them out |
| machine | late wake-ups, and time taken away |
| slow | hosts that are slower than the others |
| result, report, cluster_file | the results; as text; as a cluster file |
"""
