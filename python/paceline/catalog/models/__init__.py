"""Models without a recording: a configuration becomes layers, and layers the operators that a GPU runs.

`config` reads config.json; `families` turns it into `layers`; `modules` and `updates` list their operators, `timing`
times them; `exchanges` are those between GPUs that share layers; `memory` counts bytes; `workload` puts it together
into a trace. Nothing here imports torch.
"""
