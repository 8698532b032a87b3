"""Asynchronous training: servers own parameters and optimizer states, and apply each gradient when it arrives.

Every worker pulls all parameters, computes, and pushes each gradient when it is ready; no worker waits for the others'
gradients. With a bound on staleness N, a worker may start iteration c only when every other worker has finished
iteration c - N - 1.

| module | contents |
| --- | --- |
| protocol | the messages, and the description of a model as plain data |
| clock | which iterations may start |
| rules | the optimizers that servers run |
| placing | which server has which parameters |
| store | a server's parameters and states, and what it has applied |
| report | staleness, and the order of application |
| service | a server: receives requests by arrival |
| worker | a worker's requests |
"""
