"""Mixers, one kind in each file."""
