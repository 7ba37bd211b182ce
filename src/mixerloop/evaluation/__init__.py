"""What a trained model can do, with intervals."""
