"""Lets the tables of odd streams, which are no test files, be imported by the tests that read them."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
pytest.register_assert_rewrite("odd_streams_checks")
