"""How the model repository is run: the server's launcher and its backends."""
