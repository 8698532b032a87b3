"""Stand-ins for emulated clusters in the tests of `paceline.replay` and `paceline.validate`."""
