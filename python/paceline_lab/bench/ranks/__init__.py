"""The programs of an engine's processes, each in its own Python: see `start`.

Nothing here imports any of paceline outside this folder, except `torch_rank` if the engine is paceline itself.

| module | contents |
| --- | --- |
| start | the entry point of such a process |
| rank_spec | what a rank measures |
| data, torch_input, tensorflow_input | synthetic batches; image files |
| stopwatch | step times, CPU time, the results that are written |
| models, graph | torchvision's models; their layers as a list from which TensorFlow rebuilds them |
| torch_rank, wrapping | a PyTorch rank: DDP, Horovod's optimizer |
| tensorflow_layers, tensorflow_mirrored, tensorflow_servers | TensorFlow ranks |
| ray_rank | a Ray driver |
"""
