"""Measuring speed and memory honestly: ratios within one run, medians, a machine header."""
