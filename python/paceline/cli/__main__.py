"""`python -m paceline.cli` is `paceline`."""

from paceline.__main__ import main

if __name__ == "__main__":
    main()
