"""Ranks that replay a trace instead of computing: `paceline run -np 4 -- python -m paceline_lab.replay TRACE`.

A rank sleeps where a worker of the simulator computes, waits for the same buckets, and exchanges real buffers of the
gradients' sizes through `paceline.job`. docs/how-to/replay.md says what is measured.

| module | contents |
| --- | --- |
| worker_schedule | the plan of one worker's iteration, from the simulator |
| player | plays that plan |
| exchange | the plan's exchanges with real buffers, and checks of their results |
| clock, align | sleeping until a moment; one clock for all hosts |
| load | how the machine disturbed the process |
| play, result | one rank's part of the job; the results of all ranks |
| traces | traces with fewer bytes, for slow networks |
"""
