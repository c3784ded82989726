"""A page to draw a digit on: Flask behind waitress, and Triton behind them."""
