"""The peers' own tests, run with Paceline: `make conformance`, or in tests/, `python -m conformance --help`.

| module | contents |
| --- | --- |
| __main__ | the command: runs suites, compares with known.toml |
| suites | which files of which peer, on how many ranks, and what runs them |
| torch_host | runs torch's tests of its wheel |
| source_host | runs those of its source tree |
| horovod_host | one rank of Horovod's tests |
| loading | executes a file of tests in which words have been replaced |
| outcome | what becomes of each test |
| known.toml | tests that do not pass, each with the cause |

No test is copied: torch's are in its wheel, others in source trees that HOROVOD_SOURCE and PYTORCH_SOURCE name.
"""
