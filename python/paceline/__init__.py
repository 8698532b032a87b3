"""Runs, measures, records and forecasts synchronous data-parallel training."""
