"""Studies: matched sets of runs that are planned, trained, measured and compared."""
