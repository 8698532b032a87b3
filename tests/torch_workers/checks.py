"""Several checks in one launch."""


def run_all(checks, rank, size):
    """One after the other on every rank; says which one failed."""
    for check in checks:
        try:
            check(rank, size)
        except BaseException as error:
            error.add_note(f"in {check.__name__}")
            raise
