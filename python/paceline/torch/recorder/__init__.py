"""Recording training steps as a trace.

| module | holds |
| --- | --- |
| recorder | `record`: warm-up, recorded steps, steps without hooks |
| watch | recording unchanged scripts (`paceline record -- python train.py`) |
| step_hooks, communication_hooks, backward, modules | what is hooked: modules, parameters, collectives |
| clock, marks | when it happened, on CPUs and GPUs |
| step, trace | from events to steps, from steps to a trace |
| summary | what is said of a recording: overhead, medians |
| autograd_graph | the order of gradients, predicted from the graph |
| provenance | versions and devices |
| torchvision | models by name |
"""
