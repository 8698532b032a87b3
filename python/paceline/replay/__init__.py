"""Ranks that play a trace instead of computing: `paceline run -np 4 -- python -m paceline.replay TRACE`.

A rank sleeps where a worker of the simulator computes, waits for what that waits for, and exchanges real buffers of the
gradients' sizes through `paceline.job`. docs/how-to/replay.md says what is measured.

| module | holds |
| --- | --- |
| traces | traces with fewer bytes |
| part | what a worker does, as the simulator prepares it |
| player | the iteration: what waits for what |
| exchange | buffers, all-reduces, checked sums |
| clock | sleeping until a moment; how late one woke up |
| align | one clock for ranks of several machines |
| play | all of one rank's part |
| load | what the machine did to a rank meanwhile |
| result | what a rank says afterwards, and iteration times of all ranks |
"""
