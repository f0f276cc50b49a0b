"""Run postmaster without the directory of live instances: the registry is opened as the core opens it by itself."""

import sys

import postmaster.directory
from postmaster.registry import compiled

postmaster.directory.open_view = compiled.open_view

from postmaster.cli import main  # noqa: E402

sys.exit(main())
