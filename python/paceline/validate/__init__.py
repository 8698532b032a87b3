"""Measured and simulated side by side: each cell is played on an emulated cluster, and forecast for the same cluster.

| module | holds |
| --- | --- |
| cells | what is compared |
| compare, here | all cells, on emulated clusters or on the running job |
| real, forecasts | a cell measured; a cell simulated |
| outcome, report, plot, timeline | the results as data, text, plot and timeline |
"""
