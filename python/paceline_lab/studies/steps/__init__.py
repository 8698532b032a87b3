"""Measured training steps and their forecasts, which several studies have: rows, forecasts, errors and figures."""
