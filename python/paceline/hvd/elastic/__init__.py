"""Elastic jobs, whatever the framework: the loop around a training function, and states that ranks return to."""
