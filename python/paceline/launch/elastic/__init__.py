"""Jobs that outlive their ranks: who is in the next world when one has died or another has come.

| module | holds |
| --- | --- |
| `roster` | slots, workers, and what the driver asks of whoever starts processes |
| `order` | which worker gets which rank |
| `driver` | decides: a state machine without clock or sockets |
| `frames` | messages between worker and driver, and the proof of the secret |
| `service` | the driver's socket; for any loop that can wait for a descriptor |
| `membership` | the worker's side |
| `discovery` | a script that says which hosts there are |

A *slot* is a place where one process may run; a *worker* is one process, whose number is never used again; a *world* is
the ranks that work together until one of them is gone or others are to come, and has a *generation*. Nothing here knows
of torch, nor of how processes are started: `paceline run --elastic` and `paceline.ray` do that.
"""
