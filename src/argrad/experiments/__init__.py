"""Experiments: one file per table, figure or benchmark, each a dataclass of settings and a `run`."""
