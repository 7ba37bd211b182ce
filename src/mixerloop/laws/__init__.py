"""Scaling laws of loops: what one pass more is worth in parameters."""
