"""`paceline bench`: images/s of engines side by side, in the conventions of tf_cnn_benchmarks.

| module | holds |
| --- | --- |
| engines | what is run: one family a file |
| ranks | what runs in an engine's processes |
| environments | making an environment for an engine |
| crew, places, processes | hosts that take part; ranks' addresses and ports; starting, watching, ending |
| plan, conduct | what is measured; doing it, in rounds |
| statistics | of times of steps: uncertainty, jitter, intervals, regression |
| result, scaling, forecasts, weights | rows; over numbers of ranks; simulated; compared |
| classic, report, plot | shown |
| logs | of other benchmarks, read |
"""
