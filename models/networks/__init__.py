"""The networks: layers, norms, their configuration, costs."""
