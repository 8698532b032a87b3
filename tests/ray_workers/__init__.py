"""What actors are asked to do in tests of paceline.ray."""
