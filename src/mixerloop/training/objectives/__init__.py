"""Objectives: what a step minimises, one kind in each file."""
