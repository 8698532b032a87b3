"""Forecasts of training under a coordinator, at any scale.

| module | contents |
| --- | --- |
| model | one forecast and its result |
| options | options of the command line |
| constants, networks | measured constants of coordinators and networks |
| table | results as a table |
"""
