"""Fixtures of the black-box tests. Offices are made once by the command itself, then copied for each test."""

import shutil
from pathlib import Path

import pytest
from support import LAB, Box


@pytest.fixture(scope="session")
def empty_world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An office as `init` makes it."""
    made = Box(tmp_path_factory.mktemp("empty") / "world")
    made.init()
    return made.world


@pytest.fixture(scope="session")
def lab_world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An office whose registry was merged."""
    made = Box(tmp_path_factory.mktemp("lab") / "world")
    made.init()
    made.declare("lab", LAB)
    made.merge()
    return made.world


@pytest.fixture
def box(empty_world: Path, tmp_path: Path) -> Box:
    """An office without a registry."""
    shutil.copytree(empty_world, tmp_path / "world", symlinks=True)
    return Box(tmp_path / "world")


@pytest.fixture
def lab(lab_world: Path, tmp_path: Path) -> Box:
    """An office with a small laboratory in its registry."""
    shutil.copytree(lab_world, tmp_path / "world", symlinks=True)
    return Box(tmp_path / "world")
