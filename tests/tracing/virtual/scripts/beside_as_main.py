"""A module beside a script."""

NAME = "found"
