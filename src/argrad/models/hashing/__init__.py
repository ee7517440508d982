"""Codes of a few bits in which similar examples are neighbours."""
