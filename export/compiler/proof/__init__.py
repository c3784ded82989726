"""Proof that a rewritten graph answers as the original."""
