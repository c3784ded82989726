"""The page to draw on: waitress serves a Flask application, which asks Triton."""
