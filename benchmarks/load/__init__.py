"""Load on servers, and faults under load."""
