"""The networks and their training stage (PyTorch)."""
