"""Several jobs on one network: `paceline simulate --jobs FILE` (docs/how-to/several-jobs.md).

`spec` reads the file and places the jobs, `model` simulates them together, in pairs and alone, `table` and `plot` show
the result.
"""
