"""Starting the ranks of a job, on this machine or on hosts that a remote shell reaches: `paceline run`.

| module | contents |
| --- | --- |
| `hosts` | host lists and host files; which rank runs where |
| `variables` | the environment of the ranks |
| `frames` | messages between launcher and agent |
| `remote` | command lines that start agents |
| `agent` | runs on every host: starts the local ranks, forwards their output, ends them |
| `processes` | starting, watching and ending process groups; used by the agent |
| `checks` | an agent's checks before it starts anything |
| `request` | the request for a job: checks it, runs it, merges its recordings |
| `job` | the description of a job |
| `host` | the launcher's side of one agent |
| `reach` | by which address other hosts reach the first |
| `supervisor` | the launcher: all agents of a job, from the start to its exit code |
| `elastic` | the same for a job whose ranks may be replaced |
| `output` | the output of ranks: prefixes, log files |
| `outcomes` | how ranks ended, in words |
| `recordings` | transfer of recordings (`--record`) to the launcher |
| `merge` | merges all ranks' recordings into one trace |

The launcher writes the job (with its secret) to each agent's standard input as one line of JSON. The agent makes its
checks and answers that it is ready; when all are, the launcher sends `go`. An agent whose input ends (the launcher or
the connection died) ends its ranks.
"""
