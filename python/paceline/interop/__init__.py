"""Files of other tools: torch.profiler's traces (Kineto), and Chakra execution traces of MLCommons."""
