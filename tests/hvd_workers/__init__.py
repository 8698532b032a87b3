"""What the ranks of the tests of Horovod's API do. Each function is a rank's part; pytest does not collect them."""
