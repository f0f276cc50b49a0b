"""Fixtures of the black-box tests."""

from pathlib import Path

import pytest
from support import LAB, Box


@pytest.fixture
def box(tmp_path: Path) -> Box:
    """An office without a registry."""
    made = Box(tmp_path / "world")
    made.init()
    return made


@pytest.fixture
def lab(box: Box) -> Box:
    """An office with a small laboratory in its registry."""
    box.declare("lab", LAB)
    box.merge()
    return box
