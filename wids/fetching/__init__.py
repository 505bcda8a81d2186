"""Fetch what a URL names: whole, in parts, or only its length; and publish files at one.

Knows nothing of tars and caches. How a scheme moves bytes is the matter of `transport`.
"""
