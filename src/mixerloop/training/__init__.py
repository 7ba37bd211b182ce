"""Training: the paper's recipe, on one machine or many, resumed exactly."""
