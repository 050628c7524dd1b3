"""Element types are single objects, wherever they come from."""

from __future__ import annotations

import copy
import pickle

import pytest

from hotfuse.ir.types import DTYPES, DType


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=str)
def test_copies_and_pickles_are_the_same_object(dtype: DType) -> None:
    assert pickle.loads(pickle.dumps(dtype)) is dtype
    assert copy.deepcopy(dtype) is dtype
