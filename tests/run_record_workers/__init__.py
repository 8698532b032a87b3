"""Scripts that `paceline run --record` starts; none contains code for it."""
