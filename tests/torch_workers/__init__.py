"""What the ranks of the tests of the torch backend do. Each function is a rank's part; pytest does not collect them."""
