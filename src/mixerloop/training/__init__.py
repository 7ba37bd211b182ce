"""Training: the optimizer, its learning rate, and in time the trainer."""
