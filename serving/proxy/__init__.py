"""Envoy in front of several servers: its configuration and process."""
