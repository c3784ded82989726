"""The graph itself: files, nodes, constants, attributes, shapes and parts of outputs."""
