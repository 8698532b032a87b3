"""Stand-ins for emulated clusters in the tests of `paceline_lab.replay` and `paceline_lab.validate`."""
