"""Operators of a training step, and the time that each takes on a GPU."""
