"""What the ranks of the tests of `paceline.job` do: each module is a rank's program. pytest does not collect them."""
