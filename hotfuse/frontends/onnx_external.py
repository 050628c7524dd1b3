"""Where tensors' bytes lie: in the model's own bytes, or in files next to it (ONNX external data).

A model file is not trusted. The name of a data file is taken apart and each part opened from the directory before it, without
following links; what was opened must be a regular file that nothing else links to, and the same one that was looked at. So a
model reads nothing outside its own directory, whatever is renamed meanwhile. Files are mapped, never read.
"""

from __future__ import annotations

import os
import stat
from types import TracebackType

import onnx

from hotfuse.errors import InvalidModel, UnsafeModel
from hotfuse.file_map import map_file

_ADVICE = "put a plain copy of the data file into the model's own directory"


class DataFiles:
    """The bytes tensors refer to. State: the model's directory and the files mapped so far, while a model is being imported.

    Mappings live as long as an array refers to them. Closing only lets go of the directory.
    """

    def __init__(self, own: memoryview | None = None, directory: str | None = None) -> None:
        self._own = own
        self._directory = directory
        self._descriptor: int | None = None
        self._mapped: dict[str, memoryview] = {}

    def __enter__(self) -> DataFiles:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def bytes_of(self, tensor: onnx.TensorProto, expected: int) -> memoryview:
        """The bytes of a tensor whose data is external; `expected` is what its shape takes."""
        entries = {entry.key: entry.value for entry in tensor.external_data}
        where = f"tensor {tensor.name!r}"
        if "location" not in entries:
            raise InvalidModel(f"{where} has external data without a location")
        offset = _number(entries, "offset", 0, where)
        length = _number(entries, "length", expected, where)
        if length != expected:
            raise InvalidModel(f"{where} takes {expected:,} bytes by its shape, but {length:,} are given")
        data = self._file(entries["location"], where)
        if offset + length > len(data):
            name = entries["location"] or "the model"
            raise InvalidModel(f"{where} is at bytes {offset:,} to {offset + length:,} of {name!r}, which has {len(data):,}")
        return data[offset : offset + length]

    def _file(self, location: str, where: str) -> memoryview:
        if location == "":
            if self._own is None:
                raise InvalidModel(f"{where} has external data with an empty location")
            return self._own
        if location not in self._mapped:
            self._mapped[location] = self._map(location, where)
        return self._mapped[location]

    def _map(self, location: str, where: str) -> memoryview:
        if self._directory is None:
            raise InvalidModel(
                f"{where} keeps its data in the file {location!r}, next to the model; pass hotfuse.load the model's path"
            )
        if os.open not in os.supports_dir_fd:
            raise UnsafeModel(f"{where} keeps its data in a file, which this system cannot open safely; save it as one file")
        if self._descriptor is None:
            self._descriptor = os.open(self._directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        return _map_below(self._descriptor, _parts(location, where), f"{where}: data file {location!r}")


def _number(entries: dict[str, str], key: str, default: int, where: str) -> int:
    text = entries.get(key, "")
    if not text:
        return default
    if not (text.isascii() and text.isdigit() and len(text) < 20):
        raise InvalidModel(f"{where} has external data with the {key} {text[:40]!r}, which is not a size")
    return int(text)


def _parts(location: str, where: str) -> list[str]:
    """The names that lead to a data file, outermost first."""
    if "\0" in location:
        raise UnsafeModel(f"{where}: the name of its data file contains a NUL character; {_ADVICE}")
    if location.startswith("/") or os.path.isabs(location):
        raise UnsafeModel(f"{where}: data file {location!r} has an absolute path; {_ADVICE}")
    parts = [part for part in location.split("/") if part not in ("", ".")]
    if ".." in parts:
        raise UnsafeModel(f"{where}: data file {location!r} leads out of the model's directory; {_ADVICE}")
    if not parts:
        raise UnsafeModel(f"{where}: data file {location!r} is a directory; {_ADVICE}")
    return parts


def _map_below(directory: int, parts: list[str], what: str) -> memoryview:
    """Map the file that `parts` lead to from an open directory, following no link on the way."""
    held: list[int] = []
    try:
        for part in parts[:-1]:
            directory = os.open(part, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory)
            held.append(directory)
        seen = os.stat(parts[-1], dir_fd=directory, follow_symlinks=False)
        _refuse_unsafe(seen, what)  # before opening: to open a device or a pipe may do something, or wait
        file = os.open(parts[-1], os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=directory)
        held.append(file)
        opened = os.fstat(file)
        _refuse_unsafe(opened, what)
        if (seen.st_dev, seen.st_ino) != (opened.st_dev, opened.st_ino):
            raise UnsafeModel(f"{what} was replaced while it was being opened; load the model again when nothing writes there")
        return map_file(file, opened.st_size)
    except FileNotFoundError:
        raise InvalidModel(f"{what} does not exist; keep it next to the model") from None
    except OSError as error:  # ELOOP and ENOTDIR: a link where a directory or a file should be
        raise UnsafeModel(f"{what} cannot be opened without following a link ({error.strerror}); {_ADVICE}") from None
    finally:
        for descriptor in held:
            os.close(descriptor)


def _refuse_unsafe(status: os.stat_result, what: str) -> None:
    if stat.S_ISLNK(status.st_mode):
        raise UnsafeModel(f"{what} is a symbolic link; {_ADVICE}")
    if not stat.S_ISREG(status.st_mode):
        raise UnsafeModel(f"{what} is not a regular file; {_ADVICE}")
    if status.st_nlink > 1:
        raise UnsafeModel(f"{what} is a hard link, so it may be any file of this disk; {_ADVICE}")
