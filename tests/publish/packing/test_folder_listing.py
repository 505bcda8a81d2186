"""Which files of a folder are packed, and what is said of the others."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from conftest import in_child, raises
from trees import make_tree, packed

from wids import FetchError, NotFoundError, PackError, pack_folder
from wids.publish.packing.folder_listing import list_folder


def left_out(report: object) -> dict[str, tuple[int, tuple[str, ...]]]:
    return {s.reason: (s.count, s.names) for s in report.skipped}  # type: ignore[attr-defined]


def test_what_is_left_out_is_counted(tmp_path: Path) -> None:
    """Hidden files, files without an extension, documents, and what is no file (PACK-5, KEY-5)."""
    hidden = {".DS_Store": "x", ".git/config": "x", "a/._1.jpg": "x", "Thumbs.db": "x"}
    others = {"README.md": "x", "a/LICENSE": "x", "Makefile": "x", "license.txt": "x"}
    metadata = {"__pycache__/1.jpg": "x", "__a__.b__": "x"}
    samples = {"a/1.jpg": "1", "a/1.txt": "1", "a/__b__/2.jpg": "2"}
    root = make_tree(tmp_path / "in", {**samples, **hidden, **others, **metadata})
    os.mkfifo(root / "pipe.jpg")
    (root / "broken.jpg").symlink_to("nowhere")

    report = pack_folder(root, tmp_path / "out")

    assert list(packed(tmp_path)) == ["a/__b__/2.jpg", "a/1.jpg", "a/1.txt"]
    assert left_out(report) == {
        "named as metadata, __…__": (2, ("__a__.b__", "__pycache__")),
        "hidden": (4, (".DS_Store", ".git", "Thumbs.db")),
        "without an extension": (2, ("Makefile", "a/LICENSE")),
        "of documentation": (2, ("README.md", "license.txt")),
        "not regular": (1, ("pipe.jpg",)),
        "linked to nothing": (1, ("broken.jpg",)),
    }
    assert str(report.skipped[0]) == "4 hidden: .DS_Store, .git, Thumbs.db, …"


def test_texts_are_documents_only_beside_something_else(tmp_path: Path) -> None:
    """In a folder of texts, notice.txt is a sample."""
    make_tree(tmp_path / "in", {"notice.txt": "x", "b.txt": "x"})
    assert pack_folder(tmp_path / "in", tmp_path / "out").num_samples == 2


def test_unreadable_files_are_reported(tmp_path: Path) -> None:
    """What this user may not read is left out and reported, and the rest is packed (PACK-5)."""
    root = make_tree(tmp_path / "in", {"1.txt": "1", "2.txt": "2", "x/3.txt": "3"})
    (root / "2.txt").chmod(0)
    (root / "x").chmod(0)
    tmp_path.chmod(0o777)
    for folder in tmp_path.parents[:-1]:
        if not folder.stat().st_mode & 0o001:
            folder.chmod(folder.stat().st_mode | 0o011)

    def work() -> bool:
        if os.geteuid() == 0:  # root may read everything
            os.setresgid(65534, 65534, 65534)
            os.setresuid(65534, 65534, 65534)
        report = pack_folder(root, tmp_path / "out")
        return left_out(report) == {"not readable": (2, ("2.txt", "x/"))}

    try:
        assert in_child(work)
    finally:
        (root / "x").chmod(0o755)
    assert list(packed(tmp_path)) == ["1.txt"]


def test_links_are_followed(tmp_path: Path) -> None:
    """To files and folders; a loop ends; what leads out of the folder is said."""
    outside = make_tree(tmp_path / "outside", {"o.txt": "out", "f/p.txt": "far"})
    root = make_tree(tmp_path / "in", {"a/1.txt": "one", "b/2.txt": "two"})
    (root / "a" / "link.txt").symlink_to("1.txt")
    (root / "a" / "up").symlink_to(root)
    (root / "b" / "out.txt").symlink_to(outside / "o.txt")
    (root / "b" / "far").symlink_to(outside / "f")
    (root / "b" / "a").symlink_to("../a")

    report = pack_folder(root, tmp_path / "out", classes=False)

    assert packed(tmp_path) == {
        "a/1.txt": b"one",
        "a/link.txt": b"one",
        "b/a/1.txt": b"one",
        "b/a/link.txt": b"one",
        "b/2.txt": b"two",
        "b/out.txt": b"out",
        "b/far/p.txt": b"far",
    }
    assert left_out(report) == {"linked to a folder above": (2, ("a/up", "b/a/up"))}
    assert report.remarks == (
        "2 links lead out of the folder, and their content is packed: b/far, b/out.txt",
    )


def test_the_order_of_the_file_system_does_not_matter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A listing is sorted (PACK-13)."""
    make_tree(tmp_path / "in", {f"{c}/{n}.txt": "x" for c in "badc" for n in range(5)})
    expected = list_folder(tmp_path / "in")
    scandir = os.scandir

    class Reversed(list):  # type: ignore[type-arg]
        def __enter__(self) -> Reversed:
            return self

        def __exit__(self, *_: object) -> None:
            pass

    monkeypatch.setattr(os, "scandir", lambda path: Reversed([*scandir(path)][::-1]))
    assert list_folder(tmp_path / "in") == expected
    assert [file.path for file in expected.files] == sorted(file.path for file in expected.files)


@pytest.mark.parametrize(
    ("files", "parts"),
    [
        ({}, ["found an empty folder"]),
        ({"a/": "", "b/c/": ""}, ["found only folders", "a, b"]),
        (
            {"x": "", ".y": ""},
            ["none that can be packed", "1 hidden: .y", "without an extension: x"],
        ),
        (
            {"a-0.tar": "", "a-1.tar": "", "x.jpg": ""},
            ["found tars, 2 in all: a-0.tar, a-1.tar", "wids create"],
        ),
    ],
)
def test_folders_with_nothing_to_pack(
    files: dict[str, str], parts: list[str], tmp_path: Path
) -> None:
    """The error says what was found instead; nothing is written."""
    root = tmp_path / "in"
    make_tree(root, {name: text for name, text in files.items() if not name.endswith("/")})
    for name in files:
        if name.endswith("/"):
            (root / name).mkdir(parents=True)
    with raises(PackError, f"{root}: expected files", *parts):
        pack_folder(root, tmp_path / "out")
    assert os.listdir(tmp_path) == ["in"]


def test_what_is_no_folder(tmp_path: Path) -> None:
    """A missing folder, a file, a tar and a URL each have their own error."""
    (tmp_path / "a.tar").touch()
    (tmp_path / "a.jpg").touch()
    with raises(NotFoundError, "missing: no such folder", "current folder"):
        pack_folder(tmp_path / "missing", tmp_path / "out")
    with raises(PackError, "a.tar: expected a folder", "wids create"):
        pack_folder(tmp_path / "a.tar", tmp_path / "out")
    with raises(PackError, "a.jpg: expected a folder of files, found a file"):
        pack_folder(tmp_path / "a.jpg", tmp_path / "out")
    with raises(PackError, "s3://b/photos: expected a local folder"):
        pack_folder("s3://b/photos", tmp_path / "out")


def test_a_file_that_changes_while_it_is_packed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Longer, shorter, another time or gone: an error, and no shard with half of it."""
    from wids.publish.packing import packed_folder

    changes = {
        "longer": lambda path: path.write_bytes(b"x" * 11),
        "shorter": lambda path: path.write_bytes(b"x" * 9),
        "empty": lambda path: path.write_bytes(b""),
        "other bytes": lambda path: (path.write_bytes(b"y" * 10), os.utime(path, (1, 1))),
        "gone": lambda path: path.unlink(),
    }
    plan = packed_folder.plan_folder
    for what, change in changes.items():
        root = make_tree(tmp_path / what, {"1.txt": "x" * 10, "2.txt": "x" * 10})

        def plan_and_change(*args: object, **options: object) -> object:
            planned = plan(*args, **options)  # type: ignore[arg-type]
            change(root / "2.txt")  # noqa: B023 - called in this round
            return planned

        monkeypatch.setattr(packed_folder, "plan_folder", plan_and_change)
        with raises(FetchError, f"{root}/2.txt: expected", "list"):
            pack_folder(root, tmp_path / "out" / what)
        assert list((tmp_path / "out").iterdir()) == []
