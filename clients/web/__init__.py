"""The page to draw on: waitress serves a Flask application, which sends requests to Triton."""
