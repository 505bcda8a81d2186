"""How Sphinx turns docs, specs and docstrings into the documentation site.

The root of the repository is the source folder, so that pages link to each other, to
specifications and to examples by the same relative paths on the site and in the repository.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import wids

project = "wids"
author = "The wids authors"
copyright = author  # noqa: A001 - the name that Sphinx reads
version = release = wids.__version__

root_doc = "docs/index"
include_patterns = ["docs/**.md", "specs/**.md", "CHANGELOG.md", "CONTRIBUTING.md"]
exclude_patterns = ["**/.*", "build", "dist", "site", "tests", "wids"]
extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
]

# Headings are link targets, as on GitHub.
myst_heading_anchors = 4
myst_enable_extensions = ["attrs_inline", "colon_fence"]

# Two classes have bases of trainers, which the extra `docs` does not install.
autodoc_mock_imports = ["transformers"]
_lightning: Any = ModuleType("lightning.pytorch")
_lightning.__version__, _lightning.Callback = "2.5", type("Callback", (), {})
sys.modules.setdefault("lightning.pytorch", _lightning)
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_preserve_defaults = True
napoleon_use_rtype = False
maximum_signature_line_length = 70
python_use_unqualified_type_names = True
# Types of other packages have their documentation on other sites, which are not asked.
nitpick_ignore_regex = [("py:.*", r"(?!wids\.\w+$).*")]
default_role = "py:obj"

pygments_style, pygments_dark_style = "tango", "github-dark"
html_theme = "furo"
html_title = "wids"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_extra_path = ["_root"]  # index.html: the site begins at docs/index.html
html_search_scorer = str(Path(__file__).parent / "_static" / "scorer.js")  # guides first
html_copy_source = False
html_show_sphinx = False
html_logo = html_favicon = "_static/wids.svg"
html_theme_options = {
    "navigation_with_keys": True,
    "light_css_variables": {
        "color-brand-primary": "#0b6e63",
        "color-brand-content": "#0b6e63",
        "color-brand-visited": "#0b6e63",
        "color-api-name": "#0b6e63",
        "color-api-pre-name": "#5a6672",
    },
    "dark_css_variables": {
        "color-brand-primary": "#5fd3c1",
        "color-brand-content": "#5fd3c1",
        "color-brand-visited": "#5fd3c1",
        "color-api-name": "#5fd3c1",
        "color-api-pre-name": "#9aa7b3",
    },
}


_PICTURE: Final = re.compile(
    r'<picture>\s*<source media="\(prefers-color-scheme: dark\)" srcset="([^"]+)">\s*'
    r'<img alt="([^"]+)" src="([^"]+)">\s*</picture>'
)


def _in_both_modes(app: Any, name: str, source: list[str]) -> None:  # noqa: ARG001 - an event
    """Turn a ``<picture>``, as GitHub shows it, into an image for each mode of the theme.

    The theme has a button for its modes, which ``<picture>`` would not follow, and Sphinx copies
    only the files of images that it knows.
    """
    source[0] = _PICTURE.sub(r"![\2](\3){.only-light} ![\2](\1){.only-dark}", source[0])


def _public(app: Any, env: Any, node: Any, text: Any) -> Any:
    """Link the full name of a public object, ``wids.errors.WidsError``, to ``wids.WidsError``."""
    name = node.get("reftarget", "").rpartition(".")[2]
    if node.get("refdomain") != "py" or not hasattr(wids, name):
        return None
    domain = env.get_domain("py")
    target = (node.get("refdoc"), app.builder, "obj", f"wids.{name}", node, text)
    return domain.resolve_xref(env, *target)


def setup(app: Any) -> None:
    """Connect what Sphinx itself does not do: pictures for both modes, names of public objects."""
    app.connect("source-read", _in_both_modes)
    app.connect("missing-reference", _public)
