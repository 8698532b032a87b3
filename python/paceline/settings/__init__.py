"""The one table of settings, from which flags, variables, keywords, TOML keys and the reference page are made.

| module | contents |
| --- | --- |
| kinds | kinds of values: what is accepted, and what it becomes |
| table | every setting: names, kind, default, help, and what it applies to |
| horovod | the variables of Horovod that are read or refused |
| reference | docs/reference/settings.md, from the table |
| generate | writes what follows from the table |
| keywords | generated: `TypedDict`s of keyword arguments |
| values | generated: checked values of a job's settings |
"""
