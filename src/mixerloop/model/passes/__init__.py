"""Pass rules: what happens where a pass of a loop begins and ends."""
