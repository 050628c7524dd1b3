"""Representative calls of a user's model, read from files: what `hotfuse calibrate --model` times."""

from __future__ import annotations

import zipfile
from collections.abc import Sequence
from typing import Any

import numpy as np

import hotfuse
from hotfuse.cli.feeds import make_feeds
from hotfuse.errors import InputError
from hotfuse.runtime.feeds import read_feeds
from hotfuse.runtime.specimens import Specimen


def read_calls(model: str, files: Sequence[str]) -> list[Specimen]:
    """A call for each file of arrays by the names of inputs; without files one of random inputs. Raises InputError."""
    with hotfuse.load(model, tier=0) as session:
        graph = session.graph
        if graph.weights:
            raise InputError(
                f"{model}: its weights are not part of its graph, as in any .pt2 archive, so kernels cannot be timed alone; "
                "give the same model as .onnx (torch.onnx.export)"
            )
        if files:
            feeds = [_read_file(file) for file in files]
        else:
            feeds = [make_feeds(graph, session.inputs, given={}, shapes={}, dims={}, seed=0)]
        found = []
        for file, arrays in zip(files or ("random inputs",), feeds, strict=True):
            try:
                values = read_feeds(session.inputs, arrays)
            except InputError as error:
                raise InputError(f"{file}: {error}") from error
            found.append(Specimen(graph, dict(zip(graph.inputs, values, strict=True))))
        return found


def _read_file(file: str) -> dict[str, Any]:
    try:
        arrays = np.load(file, allow_pickle=False)
        if not isinstance(arrays, np.lib.npyio.NpzFile):
            raise ValueError("it holds a single array")
        with arrays:
            return dict(arrays)
    except (ValueError, OSError, EOFError, zipfile.BadZipFile) as error:
        raise InputError(
            f"{file} is no archive of arrays ({error}); save the inputs of a call with numpy.savez({file!r}, name=array, ...)"
        ) from error
