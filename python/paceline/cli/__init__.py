"""The command line: a module for each command, imported when it is called.

| module | contents |
| --- | --- |
| main | the group `paceline`, exit codes |
| param_types | types of options: rates, sizes, lists of names |
| job_options | the options that `run`, `emulate run` and `bench` share |
| catalog | `traces`, `clusters`, `strategies` |
| replay | `python -m paceline_lab.cli.replay`, run by the ranks of `validate` |
"""
