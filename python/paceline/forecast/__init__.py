"""Forecasts: the simulator with its options, sweeps, verdicts, tables and plots.

| module | contents |
| --- | --- |
| simulate, sweep | one forecast; many, on all cores |
| request, prepare | what is asked, checked; from names and values to scenarios |
| run, result | a scenario's simulation; what comes of it |
| verdict | what bounds an iteration, and what would speed it up, in words |
| output | results as tables, rows, plots and pages |
| coordination | forecasts under a coordinator |
| nccl | NCCL's collectives: its choice, and calibrated times |
| ray_executor | forecasts as Ray tasks |
"""
