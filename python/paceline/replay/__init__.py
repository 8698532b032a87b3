"""Ranks that replay a trace instead of computing: `paceline run -np 4 -- python -m paceline.replay TRACE`.

A rank sleeps where a worker of the simulator computes, waits for the same buckets, and exchanges real buffers of the
gradients' sizes through `paceline.job`. docs/how-to/replay.md says what is measured.

| module | contents |
| --- | --- |
| worker_schedule | what one worker does in an iteration, from the simulator |
| player | plays that schedule |
| exchange | the buckets as real buffers, and their sums |
| clock, align | sleeping until a moment; one clock for all hosts |
| load | how the machine disturbed the process |
| play, result | one rank's part of the job; the results of all ranks |
| traces | traces with fewer bytes, for slow networks |
"""
