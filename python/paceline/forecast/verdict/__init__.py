"""What forecasts mean: what bounds an iteration, what would speed it up, whether it fits, and how sure that is."""
