"""`paceline bench`: compares the images/s of engines, with the conventions of tf_cnn_benchmarks.

| module | contents |
| --- | --- |
| engines | the engines to measure: one family per file |
| ranks | the programs of an engine's processes |
| environments | creating an environment for an engine |
| host_group, places, processes | the hosts; addresses and ports of ranks; starting, watching and ending processes |
| plan, runner, session | the plan; running it in rounds |
| statistics | of step times: uncertainty, jitter, intervals, regression |
| result, scaling, forecasts, weights | rows; scaling; the simulator's forecasts; comparison of trained weights |
| classic, report, plot | the output |
| logs | reading logs of other benchmarks |
"""
