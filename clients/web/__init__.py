"""Flask behind waitress, Triton behind both."""
