"""The ranks' side of the tests of the torch backend. Each function runs on every rank; pytest does not collect them."""
