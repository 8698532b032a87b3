"""Forecasts as tables, rows, plots and pages. `style` says how every picture looks."""
