"""Scripts for `paceline run`, one for each test; pytest does not collect them."""
