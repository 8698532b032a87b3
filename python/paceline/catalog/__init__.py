"""Built-in traces, clusters, devices, strategies and coordinators, found by the names that users type.

| module | contents |
| --- | --- |
| library | traces and clusters |
| strategies | strategies and coordinators, and which options each of them uses |
| devices | published rates of devices |
| placement | which server stores which tensor |
"""
