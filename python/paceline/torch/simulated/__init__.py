"""Runs a training script without its GPU: tensors without data, and a clock that operators advance."""
