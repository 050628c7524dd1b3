"""The folder of the disk cache: which it is, and an open descriptor of it if it may be trusted.

Code is read from it, so nobody else may write there: it is a real folder, ours, closed to everybody else. It is opened first
and judged after, by its descriptor, and everything later goes through that: a folder that is swapped for another, at any
moment, changes nothing. The folder is on a local disk: what a rename means to other machines of a network is not promised.
"""

from __future__ import annotations

import errno
import os
import stat

from hotfuse.config import Config
from hotfuse.records import dataclass

OPEN_FOLDER = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_NOFOLLOW", 0)
NAME, OTHERWISE = "cache folder", "or let HOTFUSE_CACHE name another folder, or `off`"


@dataclass(frozen=True)
class Folder:
    """`device` and `inode` tell whether the descriptor is still this folder: programs that become daemons close all of them."""

    path: str
    descriptor: int
    device: int
    inode: int

    @property
    def status(self) -> os.stat_result | None:
        """What the folder is now; None if the descriptor is not this folder's any more."""
        try:
            status = os.fstat(self.descriptor)
        except OSError:
            return None
        return status if (status.st_dev, status.st_ino) == (self.device, self.inode) else None

    @property
    def is_there(self) -> bool:
        """Whether the folder can be written to: it is ours still, and nobody removed it."""
        status = self.status
        return status is not None and status.st_nlink > 0

    def close(self) -> None:
        if self.status is not None:  # otherwise the number may be somebody else's by now
            os.close(self.descriptor)


def folder_path(config: Config) -> str | None:
    """The absolute path of the cache's folder; None where there is to be no cache."""
    given = str(config.cache)
    if given == "off":
        return None
    if given:  # a path that ended with a slash would lead through a link
        return os.path.abspath(os.path.expanduser(given))
    import platformdirs

    return os.path.join(os.path.abspath(platformdirs.user_cache_dir("hotfuse")), "kernels")


def open_folder(path: str, name: str = NAME, otherwise: str = OTHERWISE) -> Folder | str:
    """The folder at a path, made if it is not there; the reason if it is refused, which calls it by a name and says what else
    can be done."""
    if os.open not in os.supports_dir_fd or not hasattr(os, "geteuid"):
        return "this system cannot open files of a folder safely, so nothing is kept on disk"
    try:
        os.makedirs(path, mode=0o700, exist_ok=True)
    except FileExistsError:
        pass  # opening says what it is
    except (OSError, ValueError) as error:
        return f"the {name} {path!r} cannot be made ({_said(error)}); make it yourself, {otherwise}"
    try:
        descriptor = os.open(path, OPEN_FOLDER)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENOTDIR):
            return f"the {name} {path!r} is a symbolic link or no folder; give the path of a real folder, {otherwise}"
        return f"the {name} {path!r} cannot be opened ({_said(error)}); make it readable for you, {otherwise}"
    status = os.fstat(descriptor)
    reason = refusal(status, path, name, otherwise)
    if reason:
        os.close(descriptor)
        return reason
    return Folder(path, descriptor, status.st_dev, status.st_ino)


def refusal(status: os.stat_result, path: str, name: str = NAME, otherwise: str = OTHERWISE) -> str:
    """Why a folder is not to be trusted; empty if it is."""
    if status.st_uid != os.geteuid():
        return f"the {name} {path!r} belongs to another user (number {status.st_uid}); give it to yourself, {otherwise}"
    mode = stat.S_IMODE(status.st_mode)
    if mode & 0o077:
        return (
            f"the {name} {path!r} is open to others (mode {mode:04o}); "
            f"remove what you do not trust in it and `chmod 700` it, {otherwise}"
        )
    return ""


def _said(error: OSError | ValueError) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error)
