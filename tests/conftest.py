"""Tests judge what plans answer from the first call on: the trial, in which the module answers, is on where a test wants it.
They leave nothing in the user's folders, and find no code that another test had compiled."""

from __future__ import annotations

import os

import pytest

from hotfuse.runtime.recent_code import RECENT

os.environ.setdefault("HOTFUSE_TRIAL", "0")
os.environ.setdefault("HOTFUSE_CACHE", "off")
os.environ.setdefault("HOTFUSE_REPRODUCTIONS", "off")


@pytest.fixture(autouse=True)
def _no_recent_code() -> None:
    RECENT.clear()
