"""Changes of a graph that leave its answers as they are."""
