"""Benchmarks of speed and memory: ratios within one run, medians and facts about the machine."""
