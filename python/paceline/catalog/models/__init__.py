"""Models without a recording: a configuration becomes layers, and a GPU's roofline gives their durations.

`config` reads config.json; `families` turns it into `layers`; `roofline` times them; `memory` counts bytes; `workload`
puts it together into a trace. Nothing here imports torch.
"""
