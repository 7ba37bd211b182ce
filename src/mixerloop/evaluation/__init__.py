"""Measurements of a trained model on held-out data, CORE and synthetic tasks."""
