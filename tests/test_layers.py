"""The packages, the direction of their imports, and what every module opens with."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import wids

LAYERS = """
errors
files
engines
fields tars
indexes transport
fetching
specs
sampling
bucketing mixing
cache
opening
reading
checking prefetching
describing
writing
packing rewriting
columns
joining
looking
browsing
mapstyle views
access
dataset peeking
streaming trainers demo
cli
"""
LAYER_OF = {p: number for number, line in enumerate(LAYERS.split("\n")) for p in line.split()}
ROOT = Path(wids.__file__).parent
MODULES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts): path.read_text()
    for path in sorted(ROOT.rglob("*.py"))
    if path.parent != ROOT or path.stem not in ("__init__", "migration")  # the entrance itself
}


def imported(source: str) -> set[str]:
    """Return the wids modules that a module imports anywhere, in functions and type checks too."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom):
            assert not node.level, "a relative import"
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return {name.removeprefix("wids.") for name in found if name.startswith("wids.")}


def forbidden(module: str, source: str) -> list[str]:
    """Return the packages that a module may not import from, but does."""
    own = module.split(".", maxsplit=1)[0]
    others = {name.split(".")[0] for name in imported(source)} - {own}
    return sorted(o for o in others if LAYER_OF.get(o, len(LAYERS)) >= LAYER_OF[own])


@pytest.mark.parametrize("module", MODULES)
def test_module_imports_only_from_packages_above(module: str) -> None:
    """Every package is in the list, and imports only from lines above its own line."""
    assert forbidden(module, MODULES[module]) == []


def test_no_import_circle_within_a_package() -> None:
    """Modules can be put in an order in which each imports only earlier ones."""
    names = {}
    for module, source in MODULES.items():
        found = imported(source)
        found |= {name.rpartition(".")[0] for name in found}  # a module, or a name in it
        names[module] = found & MODULES.keys() - {module}
    while ready := {module for module, others in names.items() if not others & names.keys()}:
        names = {module: others for module, others in names.items() if module not in ready}
    assert names == {}


@pytest.mark.parametrize(
    "line",
    [
        "from wids.dataset import ShardListDataset",
        "from wids import dataset",
        "import wids.dataset",
        "def f():\n    from wids.opening.pool import ShardPool",
        "if TYPE_CHECKING:\n    from wids.specs import loader",
        "from wids.fields import decode",
    ],
)
def test_an_upward_or_sideways_import_is_found(line: str) -> None:
    """An import from the same line of the list or from one below is found in every spelling."""
    assert forbidden("tars.shard", line) != []


def test_architecture_names_modules_that_exist() -> None:
    """Every path on the page of the architecture leads to a file or a folder."""
    page = (ROOT.parent / "specs" / "architecture.md").read_text(encoding="utf-8")
    paths = re.findall(r"`((?:\w+/)+(?:[\w.]+)?|\w+/\w+\.py)`", page)
    roots = (ROOT, ROOT.parent)

    assert len(paths) > 30
    assert [p for p in paths if not any((root / p).exists() for root in roots)] == []


def test_modules_have_no_vague_names() -> None:
    """Code without a place shows that a module is missing, not that utilities are needed."""
    stems = {module.split(".")[-1] for module in MODULES}
    assert not {"utils", "common", "helpers", "base", "types"} & stems


@pytest.mark.parametrize("module", MODULES)
def test_module_opens_with_a_docstring(module: str) -> None:
    """A module says first what it turns into what."""
    assert len(ast.get_docstring(ast.parse(MODULES[module])) or "") > 40


def test_test_modules_have_names_of_their_own() -> None:
    """No two test modules share a name: pytest imports them by name alone."""
    names = [path.name for path in ROOT.parent.glob("tests/**/*.py")]
    assert sorted({name for name in names if names.count(name) > 1}) == []
