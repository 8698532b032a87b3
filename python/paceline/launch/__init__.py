"""Starting the ranks of a job, on this machine or on hosts that a remote shell reaches: `paceline run`.

| module | contents |
| --- | --- |
| `hosts` | host lists and host files; which rank runs where |
| `variables` | what the ranks find in their environment |
| `frames` | what launcher and agent say to each other |
| `remote` | command lines that start agents |
| `agent` | runs on every host: starts the local ranks, passes on what they print, ends them |
| `processes` | starting, watching and ending process groups; used by the agent |
| `checks` | what an agent finds out before it starts anything |
| `request` | what is asked of a job, wherever it runs; checked, run, and what it leaves put together |
| `job` | what is run, and where |
| `host` | the launcher's side of one agent |
| `reach` | by which address other hosts reach the first |
| `supervisor` | the launcher: all agents of a job, from the start to its exit code |
| `elastic` | the same for a job whose ranks may be replaced |
| `output` | what the ranks print: prefixes, log files |
| `outcomes` | how ranks ended, in words |
| `recordings` | what ranks record (`--record`), on its way to the launcher |
| `merge` | one trace of what all ranks have recorded |

The launcher writes the job (with its secret) to each agent's standard input as one line of JSON. The agent checks what
it can and answers that it is ready; when all are, the launcher says `go`. An agent whose input ends (the launcher or
the connection died) ends its ranks.
"""
