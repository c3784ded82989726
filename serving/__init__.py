"""Runs the model repository: launcher and backends, supervisor, proxy, fleet."""
