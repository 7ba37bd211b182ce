"""Toy kinds, each in one file: importing a file registers its kind."""
