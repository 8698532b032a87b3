"""The ranks' side of the tests of Horovod's API. Each function runs on every rank; pytest does not collect them."""
