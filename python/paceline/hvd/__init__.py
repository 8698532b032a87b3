"""The common part of all fronts with Horovod's API: nothing here imports torch, TensorFlow or numpy.

| module | contents |
| --- | --- |
| lifecycle, world | init and shutdown; ranks, and their nodes |
| environment | HOROVOD_ variables |
| process_sets, members, handles | subsets of the ranks; how their operations start; those in flight |
| operators | Average, Sum, ... |
| messages, objects | small messages and Python objects between ranks |
| timeline | recording a timeline |
| partition | cores of the policy `partitioned` |
| elastic | elastic jobs: the loop around a training function, and the state of Python objects |
| build_info | Horovod's build features, none of which exist |
"""
