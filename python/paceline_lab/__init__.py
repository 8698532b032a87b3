"""Paceline's lab: what measures, reproduces and shows, and stands on the package `paceline`, which never imports it.

Its commands are commands of `paceline`, by the entry point `paceline.commands`.

| package | command | contents |
| --- | --- | --- |
| bench | `bench` | comparison of training engines |
| emulate | `emulate` | clusters of network namespaces on this machine |
| explore, report | `explore`, `report` | forecasts with sliders; as one page |
| plan | `plan` | plans of a graph's all-reduces |
| replay | | ranks that replay a trace |
| studies | `study` | published studies, reproduced |
| validate | `validate` | measurements against simulations |
"""
