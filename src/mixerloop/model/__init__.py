"""The looped language model: sublayers, the walk over a schedule, decoding and accounting."""
