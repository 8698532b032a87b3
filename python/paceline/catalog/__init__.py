"""What is built in: traces, clusters, devices, strategies and coordinators, found by the names that users type.

| module | holds |
| --- | --- |
| library | traces and clusters |
| strategies | strategies and coordinators, and which options each of them uses |
| devices | published rates of devices |
| placement | which server holds which tensor |
"""
