"""The programs of an engine's processes, each in its own Python: see `start`.

Nothing here imports more of paceline than this folder, but for `torch_rank` where the engine is paceline itself.

| module | contents |
| --- | --- |
| start | the first words of such a process |
| rank_spec | what a rank measures |
| data, torch_input, tensorflow_input | synthetic batches; image files |
| stopwatch | times of steps, CPU, what is written in the end |
| models, graph | torchvision's models; their layers as a list that TensorFlow builds again |
| torch_rank, wrapping | a rank of PyTorch: DDP, Horovod's optimizer |
| tensorflow_layers, tensorflow_mirrored, tensorflow_servers | ranks of TensorFlow |
| ray_rank | a driver of Ray |
"""
