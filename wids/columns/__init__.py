"""Indexes and small fields of a dataset → tables and keys."""
