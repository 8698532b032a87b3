"""Forecasts: the simulator with its options, sweeps, tables, explanations and pictures.

| module | holds |
| --- | --- |
| simulate | one forecast and its result |
| sweep | the product of several options, on all cores |
| options | options as the command line and specifications give them |
| table | results as a table, with a verdict |
| explain, advice | what bounds an iteration, and what would move it |
| plotting, html | pictures, and pages that hold them |
| frame | results as a pandas DataFrame |
| ray_executor | sweeps on a Ray cluster |
| coordination | forecasts under a coordinator, at any scale |
"""
