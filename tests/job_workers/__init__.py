"""The ranks' side of the tests of `paceline.job`: each module is a rank's program. pytest does not collect them."""
