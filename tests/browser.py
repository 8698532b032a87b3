"""A real browser for tests of pages."""

import shutil

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"]
FLAGS += ["--disable-background-networking", "--disable-component-update"]
needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="needs chromium: apt-get install chromium")
