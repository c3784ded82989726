"""Load on a server: targets, load generators, and the point of saturation."""
