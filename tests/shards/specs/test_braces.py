"""Brace patterns, and those that would exhaust the memory."""

from __future__ import annotations

import time

import pytest
from braceexpand import braceexpand
from conftest import raises
from hypothesis import given, settings
from hypothesis import strategies as st

from wids.errors import SpecError
from wids.shards.specs import naming


def test_braces_expand_as_in_a_shell() -> None:
    """Ranges and lists are expanded; a lone name in braces is not."""
    assert naming.expand("t-{08..11}.tar") == ["t-08.tar", "t-09.tar", "t-10.tar", "t-11.tar"]
    assert naming.expand("{a,b}/{0..1}.tar") == ["a/0.tar", "a/1.tar", "b/0.tar", "b/1.tar"]
    assert naming.expand("pipe:cat {local} {0..1}") == ["pipe:cat {local} 0", "pipe:cat {local} 1"]
    with raises(SpecError, "t-{00..11.tar: the braces are not balanced"):
        naming.expand("t-{00..11.tar")


def test_backslashes_are_preserved() -> None:
    """A backslash is part of a name, with braces and without."""
    assert naming.expand("d\\x.tar") == ["d\\x.tar"]
    assert naming.expand("d\\x-{0..1}.tar") == ["d\\x-0.tar", "d\\x-1.tar"]


@pytest.mark.parametrize(
    "pattern",
    [
        "{0..9999999999}",
        "{1..9}{0..9999999}",
        "{a,b}" * 30,
        "{x{a,b}{a,b}" + "{a,b}" * 30 + ",y}.tar",
        "{a,{0..99999999}}",
        "{9..-9999999999}",
        "x" * 1000 + "{0..9999999}",
        "{" + "0" * 4000 + "1..999999}",
        "{a..z}" * 6,
        "pre{" + "{0..9999}" * 2 + "}",
        "{0..1" + "0" * 4000 + "}",
    ],
)
def test_bombs_are_counted_before_they_expand(pattern: str) -> None:
    """More than ten million names, or a gigabyte of them, are refused at once (SPEC-11)."""
    started_s = time.process_time()
    with raises(SpecError, "expected a pattern of at most 10000000 names"):
        naming.expand(pattern)
    assert time.process_time() - started_s < 0.5


def test_braces_have_a_depth() -> None:
    """Braces inside one another do not exhaust the stack."""
    assert naming.expand("{" * 16 + "a,b" + "}" * 16) == [
        "{" * 15 + name + "}" * 15 for name in "ab"
    ]
    for depth in (17, 1000, 100_000):
        with raises(SpecError, "at most 16 braces inside one another"):
            naming.expand("{" * depth + "a,b" + "}" * depth)
        with raises(SpecError, "not balanced"):
            naming.expand("{" * depth)


def test_numbers_of_thousands_of_digits() -> None:
    """Python refuses to convert them, which is an error of the pattern."""
    with pytest.raises(SpecError):
        naming.expand("{0..1" + "0" * 5000 + "}")


@settings(max_examples=100, deadline=None)
@given(st.lists(st.sampled_from(["{", "}", ",", "a", "..", "1", "03", "{1..3}", "{x,y}"])))
def test_no_pattern_is_larger_than_counted(parts: list[str]) -> None:
    """The count agrees with what braceexpand makes; letters count as the whole alphabet."""
    pattern = "".join(parts)
    try:
        names = list(braceexpand(pattern, escape=False))
    except ValueError:
        return
    size = naming._size_of_pattern(pattern, 0)
    assert size.num_names >= len(names)
    assert size.nbytes >= sum(map(len, names))
    if "a.." not in pattern:
        assert size.num_names == len(names)
