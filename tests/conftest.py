"""How many examples hypothesis tries: few in `make test`, many in `make test-all` (`--hypothesis-profile=full`)."""

from hypothesis import settings

settings.register_profile("few", max_examples=25)
settings.register_profile("full", max_examples=150)
settings.load_profile("few")
