"""Forecasts of training under a coordinator, at any scale.

| module | contents |
| --- | --- |
| model | which coordinator, with which constants |
| options | from the options of a forecast to its coordinators |
| constants, networks | measured constants of coordinators and networks |
"""
