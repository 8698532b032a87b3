"""Recording training steps as a trace.

| module | contents |
| --- | --- |
| recorder | `record`: warm-up, recorded steps, steps without hooks |
| watch | recording unchanged scripts (`paceline record -- python train.py`) |
| step_hooks, communication_hooks, backward, modules | the hooks: on modules, parameters, collectives |
| clock, marks | timestamps on CPUs and GPUs |
| step, trace | events to steps, steps to a trace |
| autograd_graph | predicted order of gradients |
| provenance | versions and devices |
| torchvision | models by name |
"""
