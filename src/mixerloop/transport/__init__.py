"""Transport: the effect of each mixer pass at the readout."""
