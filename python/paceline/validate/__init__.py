"""Real and simulated side by side: each cell is played on an emulated cluster, and forecast for the same cluster.

| module | holds |
| --- | --- |
| cells | what is compared: traces, strategies, workers, servers; the three tiers |
| forecasts | the same thing simulated |
| real | the same thing run, again if the machine disturbed it |
| compare | all cells, one cluster after the other |
| here | cells on the hosts of the running job (--here) |
| outcome | rows, what was skipped, errors by strategy |
| report | the table; CSV |
| plot | measured against simulated |
| timeline | both timelines of a cell in one file |
"""
