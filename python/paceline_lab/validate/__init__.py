"""Measurements compared with simulations: each cell runs on an emulated cluster, and is forecast for the same cluster.

| module | contents |
| --- | --- |
| cells | what is compared |
| compare, here | all cells, on emulated clusters or on the running job |
| real, forecasts | a cell measured; a cell simulated |
| outcome, report, plot, timeline | the results as data, text, plot and timeline |
"""
