"""The folder of reproductions: bounded, private, and never in the way of what serves.

A reproduction holds values of real calls, so the folder is closed to everybody else. One is written under another name and
renamed when it is whole; its name is a digest of its operators and programs, so that one fault is kept once and nothing
is overwritten. Of too many, or too many bytes, the oldest go. What cannot be written is a reason, and never raised.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
import time
from pathlib import Path

from hotfuse.config import Config
from hotfuse.errors import HotfuseError, ParseError
from hotfuse.records import dataclass
from hotfuse.runtime.cache_folder import OPEN_FOLDER, Folder, open_folder
from hotfuse.runtime.reproduction import Reproduction
from hotfuse.runtime.reproduction_form import GRAPH, RECORD, TENSORS, Files, from_files, to_files

MOST_KEPT = 16
MOST_BYTES = 1 << 30  # of all that are kept
ONE_BYTES = 1 << 28  # of one: a layer with its weights, not a model
OTHERWISE = "or let HOTFUSE_REPRODUCTIONS name another folder, or `off`"
LEFT_S = 3600.0  # after which whoever was writing is dead
_NAME = re.compile(r"[a-z]+-[0-9a-f]{12}")
_PART = re.compile(r"[0-9a-f]{16}\.part")
_FILE = re.compile(r"program-\d{1,4}\.tile|reproduction\.json|graph\.txt|tensors\.safetensors")


@dataclass(frozen=True)
class Written:
    """Where a reproduction is, or the reason why it was not written."""

    path: Path | None
    reason: str = ""


def reproductions_path(config: Config) -> str | None:
    """The folder that reproductions are kept in; None where none are wanted."""
    given = str(config.reproductions)
    if given == "off":
        return None
    if given:
        return os.path.abspath(os.path.expanduser(given))
    import platformdirs

    return os.path.join(os.path.abspath(platformdirs.user_state_dir("hotfuse")), "reproductions")


def write_reproduction(
    path: str | None, reproduction: Reproduction, otherwise: str = OTHERWISE, bounded: bool = True
) -> Written:
    """Keep a reproduction in the folder at a path. One that is there already is left as it is, and so are all others where the
    folder is not `bounded`. `otherwise` says what to do where the folder is refused."""
    if path is None:
        return Written(None, "reproductions are off (HOTFUSE_REPRODUCTIONS)")
    try:
        files = to_files(reproduction)
    except (HotfuseError, TypeError, ValueError) as error:
        return Written(None, f"it cannot be written down: {error}")
    taken = sum(map(len, files.values()))
    if taken > ONE_BYTES:
        return Written(None, f"it would take {taken:,} bytes; at most {ONE_BYTES:,} are kept of one")
    folder = open_folder(path, "folder of reproductions", otherwise)
    if isinstance(folder, str):
        return Written(None, folder)
    try:
        name = _name(reproduction, files)
        _write(folder, name, files)
        if bounded:
            _prune(folder, keep=name)
        return Written(Path(path, name))
    except OSError as error:
        return Written(None, f"it cannot be written to {path!r}: {error.strerror or error}")
    finally:
        folder.close()


def _name(reproduction: Reproduction, files: Files) -> str:
    """What is the same for the same fault, whatever values showed it, and in whichever of equal layers."""
    graph = reproduction.graph
    shapes = [array.shape for array in reproduction.tensors.values()]
    facts = (reproduction.circumstances.generator, graph.name, [node.op for node in graph.nodes], shapes, reproduction.shrunk)
    digest = hashlib.sha256(repr(facts).encode())
    for file in sorted(set(files) - {RECORD, GRAPH, TENSORS}):
        digest.update(hashlib.sha256(files[file]).digest())
    kind = reproduction.units[0].kind if len(reproduction.units) == 1 else reproduction.kind
    return f"{re.sub('[^a-z]', '', kind) or 'unit'}-{digest.hexdigest()[:12]}"


def _write(folder: Folder, name: str, files: Files) -> None:
    part = f"{os.urandom(8).hex()}.part"
    os.mkdir(part, 0o700, dir_fd=folder.descriptor)
    try:
        inside = os.open(part, OPEN_FOLDER, dir_fd=folder.descriptor)
        try:
            for file, data in files.items():
                _write_file(inside, file, data)
            os.fsync(inside)
        finally:
            os.close(inside)
        if _exists(folder, name):
            raise FileExistsError
        os.rename(part, name, src_dir_fd=folder.descriptor, dst_dir_fd=folder.descriptor)  # refused where a full folder is
    except FileExistsError:
        _remove(folder, part)
    except BaseException:
        _remove(folder, part)
        if not _exists(folder, name):
            raise


def _write_file(folder: int, name: str, data: bytes) -> None:
    descriptor = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600, dir_fd=folder)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _exists(folder: Folder, name: str) -> bool:
    try:
        os.stat(name, dir_fd=folder.descriptor, follow_symlinks=False)
    except OSError:
        return False
    return True


def _remove(folder: Folder, name: str) -> None:
    with contextlib.suppress(OSError):
        shutil.rmtree(name, dir_fd=folder.descriptor)


def _prune(folder: Folder, keep: str) -> None:
    """Remove the oldest until the rest is within its bounds, and what dead writers left."""
    names = os.listdir(folder.descriptor)
    for name in names:
        if _PART.fullmatch(name) and time.time() - _made_s(folder, name) > LEFT_S:
            _remove(folder, name)
    kept = sorted((n for n in names if _NAME.fullmatch(n) and n != keep), key=lambda n: (_made_s(folder, n), n))
    taken = {name: _bytes(folder, name) for name in (*kept, keep)}
    while kept and (len(kept) >= MOST_KEPT or sum(taken.values()) > MOST_BYTES):
        oldest = kept.pop(0)
        del taken[oldest]
        _remove(folder, oldest)


def _made_s(folder: Folder, name: str) -> float:
    try:
        return os.stat(name, dir_fd=folder.descriptor, follow_symlinks=False).st_mtime
    except OSError:  # another process removed it
        return float("inf")


def _bytes(folder: Folder, name: str) -> int:
    with contextlib.suppress(OSError):
        inside = os.open(name, OPEN_FOLDER, dir_fd=folder.descriptor)
        try:
            return sum(os.stat(file, dir_fd=inside, follow_symlinks=False).st_size for file in os.listdir(inside))
        finally:
            os.close(inside)
    return 0


def read_reproduction(path: Path) -> Reproduction:
    """The reproduction in a folder. ParseError where there is none, or where it is damaged."""
    if not path.is_dir():
        raise ParseError(f"{path}: this is no folder; give the folder of a reproduction, the one with {RECORD} in it")
    if not (path / RECORD).is_file():
        raise ParseError(f"{path}: there is no {RECORD} in it; give the folder of a reproduction")
    files: dict[str, bytes] = {}
    left = ONE_BYTES
    for name in sorted(os.listdir(path)):
        if not _FILE.fullmatch(name) or not (path / name).is_file():
            continue
        with open(path / name, "rb") as file:
            files[name] = file.read(left + 1)
        left -= len(files[name])
        if left < 0:
            raise ParseError(f"{path}: more than {ONE_BYTES:,} bytes are refused")
    try:
        return from_files(files)
    except ParseError as error:
        raise ParseError(f"{path}: {error}") from error
