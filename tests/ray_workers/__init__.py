"""What actors do in tests of paceline.ray."""
