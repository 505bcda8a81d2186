"""The eight packages, the direction of their imports, and what every module opens with."""

from __future__ import annotations

import ast
import re
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

import wids

PACKAGES = ("storage", "shards", "order", "publish", "tables", "look", "dataset", "cli")
"""Each imports from those before it, and from `errors`."""
TOP = ("errors", "migration", "__main__", "__init__")
ROOT = Path(wids.__file__).parent
MODULES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts): path.read_text()
    for path in sorted(ROOT.rglob("*.py"))
}
IN_PACKAGES = [name for name in MODULES if name not in TOP]


@cache
def imported(module: str, source: str) -> set[str]:
    """Return what a module imports from wids, in functions and type checks too."""
    found = set()
    package = f"wids.{module}".split(".")[:-1]
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom):
            up = package[: len(package) - node.level + 1] if node.level else []
            start = ".".join([*up, *filter(None, [node.module])])
            found |= {f"{start}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return {name.removeprefix("wids.") for name in found if name.startswith("wids.")}


def forbidden(module: str, source: str) -> list[str]:
    """Return the packages that a module may not import from, but does."""
    own = module.split(".", maxsplit=1)[0]
    allowed = ["errors", *PACKAGES[: PACKAGES.index(own) + 1]]
    return sorted({name.split(".")[0] for name in imported(module, source)} - {*allowed})


def test_there_are_eight_packages() -> None:
    """Nothing else is at the top, except for a few modules."""
    assert {path.name for path in ROOT.iterdir() if (path / "__init__.py").exists()} == {*PACKAGES}
    assert {path.stem for path in ROOT.glob("*.py")} == {*TOP}


def test_no_import_leads_upward() -> None:
    """A module imports from its own package, and from those before it."""
    found = {module: forbidden(module, MODULES[module]) for module in IN_PACKAGES}
    assert {module: names for module, names in found.items() if names} == {}


def test_the_order_reads_no_files() -> None:
    """Of the packages before it, the order of an epoch has only data and texts of numbers."""
    found = {
        name.rpartition(".")[0]
        for module, source in MODULES.items()
        if module.startswith("order.")
        for name in imported(module, source)
    }
    others = {name for name in found if not name.startswith("order") and name != "errors"}
    assert others <= {
        *("shards.capacity", "shards.specs.model"),
        *("storage.arrays", "storage.shared_numbers", "storage.sizes"),
    }


def test_no_import_circle() -> None:
    """Modules can be put in an order in which each imports only earlier ones."""
    names = {}
    for module in IN_PACKAGES:
        found = imported(module, MODULES[module])
        found |= {name.rpartition(".")[0] for name in found}  # a module, or a name in it
        names[module] = found & MODULES.keys() - {module}
    names = {module: others & names.keys() for module, others in names.items()}
    while ready := {module for module, others in names.items() if not others & names.keys()}:
        names = {module: others for module, others in names.items() if module not in ready}
    assert names == {}


@pytest.mark.parametrize(
    "line",
    [
        "from wids.dataset import shard_list",
        "from wids import dataset",
        "import wids.dataset.shard_list",
        "from ...dataset import shard_list",
        "from ... import dataset",
        "def f():\n    from wids.order.fit import remarks",
        "if TYPE_CHECKING:\n    from wids.cli import main",
    ],
)
def test_an_upward_import_is_found(line: str) -> None:
    """An import from a later package is found in every spelling, relative ones included."""
    assert forbidden("shards.tars.shard", line) != []
    assert forbidden("shards.tars.shard", "from .. import fields") == []


def test_architecture_names_modules_that_exist() -> None:
    """Every path on the page of the architecture leads to a file or a folder."""
    page = (ROOT.parent / "specs" / "architecture.md").read_text(encoding="utf-8")
    paths = re.findall(r"`((?:\w+/)+(?:[\w.]+)?|\w+/\w+\.py)`", page)
    roots = (ROOT, ROOT.parent)

    assert len(paths) > 30
    assert [p for p in paths if not any((root / p).exists() for root in roots)] == []


def test_no_two_modules_share_a_name() -> None:
    """The name of a module or a folder says which one it is."""
    names = Counter(
        name
        for module in MODULES
        for name in {module.removesuffix(".__init__").split(".")[-1]}
        if name != "__init__"
    )
    assert [name for name, count in names.items() if count > 1] == []


def test_modules_have_no_vague_names() -> None:
    """Code without a place shows that a module is missing, not that utilities are needed."""
    stems = {module.split(".")[-1] for module in MODULES}
    assert not {"utils", "common", "helpers", "base", "types"} & stems


@pytest.mark.parametrize("package", PACKAGES)
def test_a_package_names_what_to_read_first(package: str) -> None:
    """Its docstring names modules that exist, three of them except for the commands."""
    text = ast.get_docstring(ast.parse(MODULES[f"{package}.__init__"])) or ""
    names = re.findall(r"`([a-z_.]+)`", text.partition("Read first:")[2])
    assert len(names) == 3
    assert [name for name in names if f"{package}.{name}" not in MODULES] == []


def test_test_modules_have_names_of_their_own() -> None:
    """No two test modules share a name: pytest imports them by name alone."""
    names = [path.name for path in ROOT.parent.glob("tests/**/*.py")]
    assert sorted({name for name in names if names.count(name) > 1}) == []


def test_modules_that_are_named_exist() -> None:
    """A dotted name of wids in a docstring or comment leads to a module, or to a name in one."""
    wrong = []
    for module in MODULES.keys() - {"migration"}:  # that one names what is gone
        for name in re.findall(r"`(wids\.[\w.]+)`", MODULES[module]):
            name = name.removeprefix("wids.")  # noqa: PLW2901 - as the modules are named
            parent, _, last = name.rpartition(".")
            if name in MODULES or f"{name}.__init__" in MODULES:
                continue
            places = (MODULES.get(parent), MODULES.get(f"{parent}.__init__".lstrip(".")))
            if not any(re.search(rf"\b{last}\b", place) for place in places if place):
                wrong.append((module, name))
    assert wrong == []


def test_the_list_of_tests_that_need_posix_names_tests() -> None:
    """A name that is left of a test that moved would skip nothing there."""
    folder = Path(__file__).parent
    listed = (folder / "without_posix" / "needs_posix.txt").read_text(encoding="utf-8")
    names = [line for line in listed.splitlines() if line and not line.startswith("#")]
    for name in names:
        file, _, test = name.partition("[")[0].partition("::")
        text = (folder.parent / file).read_text(encoding="utf-8")
        assert not test or f"def {test}(" in text, name
