"""Networks and their training (PyTorch)."""
