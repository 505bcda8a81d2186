"""Style the HTML in a notebook by one style sheet, which each output carries with it.

Colours are those of the surrounding page, light or dark. Notebooks have style sheets of their own
for tables, headings, paragraphs, code and pictures in outputs; what they set, `notebook.css` sets
too, with `!important`. They differ most in definition lists, where JupyterLab makes the terms
float, so labels and values are plain elements.
"""

from __future__ import annotations

from functools import lru_cache
from importlib import resources


@lru_cache(maxsize=1)
def style() -> str:
    """Return the style sheet as an element, to be placed before the HTML that it styles."""
    css = resources.files("wids.look").joinpath("notebook.css").read_text(encoding="utf-8")
    return f"<style>{css}</style>"
