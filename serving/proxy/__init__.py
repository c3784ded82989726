"""Envoy in front of several servers: its configuration from a list of servers, and its process."""
