"""Lets the tables of odd streams, which are no test files, be imported by the tests that read them."""

from __future__ import annotations

import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from servebench.wire.connection import open_socket

sys.path.insert(0, str(Path(__file__).parent))
pytest.register_assert_rewrite("odd_streams_checks")


@pytest.fixture(scope="session", autouse=True)
def kernel_stamps() -> Iterator[None]:
    """Have the kernel stamp packets from before the first test on; for a plan of one row it would start too late."""
    with open_socket(socket.AF_INET):
        yield
