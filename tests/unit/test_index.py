"""The checked table under the history index."""

import sqlite3
from hashlib import md5
from pathlib import Path

import pytest

from postmaster.index import CannotWrite, Damaged, Value, create, open_index


def _key(number: int) -> bytes:
    return md5(b"%d" % number).digest()


def test_many_keys_are_found_again(tmp_path: Path) -> None:
    """While the table grows and its buckets are split, no key is lost, and none appears."""
    path = str(tmp_path / "index")
    index = create(path)
    for start in range(0, 6000, 500):
        index.put({_key(number): [number, f"text {number}"] for number in range(start, start + 500)}, str(start))
        assert index.get(_key(start)) == [start, f"text {start}"] and index.get(_key(start + 500)) == []
    index.close()
    again = open_index(path)
    assert again is not None and again.text == "5500"
    assert all(again.get(_key(number)) == [number, f"text {number}"] for number in range(6000))
    assert all(again.get(_key(number)) == [] for number in range(6000, 7000))
    again.close()


def test_values_are_merged(tmp_path: Path) -> None:
    """Of numbers the highest stays; texts are gathered, each once, in their order."""
    index = create(str(tmp_path / "index"))
    values: list[list[Value]] = [[3, "b"], [2, "a", "b"], [5], ["c"]]
    for new in values:
        index.put({_key(1): new}, "")
    assert index.get(_key(1)) == [5, "b", "a", "c"]
    index.close()


def test_a_key_that_stands_in_a_text_is_not_found(tmp_path: Path) -> None:
    """A path can hold the very digits of another key."""
    index = create(str(tmp_path / "index"))
    index.put({_key(number): [_key(number + 1).hex()] for number in range(500)}, "")
    assert index.get(_key(500)) == []
    index.close()


def test_none_where_there_is_none(tmp_path: Path) -> None:
    """A missing table is no damage; one that cannot be made says so."""
    assert open_index(str(tmp_path / "index")) is None
    with pytest.raises((CannotWrite, Damaged)):
        create(str(tmp_path / "nowhere" / "index"))


def test_a_fault_while_writing_changes_nothing(tmp_path: Path) -> None:
    """A damaged bucket stops a change; what was there before is still there."""
    path = tmp_path / "index"
    index = create(str(path))
    index.put({_key(number): [number] for number in range(300)}, "before")
    index.close()
    reopened = open_index(str(path))
    assert reopened is not None
    index = reopened
    other = sqlite3.connect(path)
    other.execute("UPDATE bucket SET sum = x'00' WHERE number = 63")
    other.commit()
    other.close()
    with pytest.raises(Damaged):
        index.put({_key(number): [999] for number in range(300)}, "after")
    assert index.get(_key(1)) == [1] and index.text == "before"
    index.close()
    again = open_index(str(path))
    assert again is not None and again.text == "before" and again.get(_key(1)) == [1]
    again.close()
