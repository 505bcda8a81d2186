"""Indexes and small fields of a dataset → tables, joins and keys."""
