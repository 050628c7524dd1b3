"""Tests judge what plans answer from the first call on: the trial, in which the module answers, is on where a test wants it.
They leave nothing in the user's folders."""

from __future__ import annotations

import os

os.environ.setdefault("HOTFUSE_TRIAL", "0")
os.environ.setdefault("HOTFUSE_CACHE", "off")
os.environ.setdefault("HOTFUSE_REPRODUCTIONS", "off")
