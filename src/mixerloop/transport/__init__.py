"""What each pass of a mixer does at the readout."""
