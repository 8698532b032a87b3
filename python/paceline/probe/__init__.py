"""What a cluster's network and machines give, measured by the ranks of a job: `paceline probe`.

Rank 0 orders, all ranks obey and answer; all transfers are sends and receives of the runtime. docs/how-to/probe.md says
what is measured, and what of it stands in the cluster file.

| module | holds |
| --- | --- |
| layout | hosts, and their ranks |
| orders | what rank 0 asks, and that all answer |
| hand | what a rank does when it is told to |
| machine | late wake-ups, and time that is taken from a busy thread |
| patterns | who sends to whom |
| measure | all measurements, within a time and a number of bytes |
| result | what was found |
| slow | hosts and pairs that are slower than others |
| cluster_file | the cluster file |
| report | for people |
"""
