"""The command line: a module for each command, imported when it is called.

| module | contents |
| --- | --- |
| main | the group `paceline`, exit codes |
| param_types | types of options: rates, sizes, lists of names |
| job_options | the options that `run`, `emulate run` and `bench` share |
| command, help_layout | the class of all commands; the page of `--help` |
| misuse, meant, usage | errors in a command line, and what to type instead |
| completion, shells | what the tab key completes |
| imported | the output of commands that make a trace of other files |
| catalog, models | `list` |
| replay | `python -m paceline_lab.cli.replay`, run by the ranks of `validate` |
"""
