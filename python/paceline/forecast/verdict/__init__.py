"""Verdicts on forecasts: the bottleneck, what would help, whether it fits, and how sure that is."""
