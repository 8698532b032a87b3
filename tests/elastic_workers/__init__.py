"""Scripts for `paceline run --elastic`; pytest does not collect them."""
