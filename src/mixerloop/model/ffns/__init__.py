"""Feed-forward networks, one kind in each file."""
