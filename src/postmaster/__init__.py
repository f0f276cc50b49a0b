"""Postmaster: a deterministic post office for agents."""

__version__ = "0.1.0"
