"""Matched sets of runs: planned, run cell by cell, measured alike."""
