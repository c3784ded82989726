"""The graph itself: constants, attributes, shapes and their inference, files."""
