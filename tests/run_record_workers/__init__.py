"""Scripts that `paceline run --record` starts; none of them knows of it."""
