"""The name that `paceline_lab.plan` had in the last release."""

from paceline._internal.moved import moved

moved(__name__, "paceline_lab.plan")
