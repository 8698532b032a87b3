"""Forecasts: the simulator with its options, sweeps, tables, explanations and plots.

| module | contents |
| --- | --- |
| simulate, sweep | one forecast; many, on all cores |
| options | from names and values to scenarios |
| table, frame, plotting, html | results as tables, rows, plots and pages |
| advice, explain | what bounds an iteration, and what would speed it up |
| coordination | forecasts under a coordinator |
| nccl | NCCL's collectives: its choice, and calibrated times |
| ray_executor | forecasts as Ray tasks |
"""
