"""A dataset → text, HTML and a page for a person.

Typed on protocols, so that it stays below the dataset.
"""
