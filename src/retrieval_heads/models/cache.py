"""The folder where fetched and converted files are kept, and how a folder in it is made whole or not at all."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

VARIABLE = "RETRIEVAL_HEADS_CACHE"
MANIFEST = "manifest.json"  # in every finished folder: what it was made from, and each file's size and sha256
LARGE = 16_000_000  # bytes; files above are checked by their size alone where a quick check is asked for


class LoadError(RuntimeError):
    """Weights or data cannot be had. The message is one sentence: what is wrong, and the remedy."""


def cache_folder() -> Path:
    """``$RETRIEVAL_HEADS_CACHE``, else ``$XDG_CACHE_HOME/retrieval-heads``, else ``~/.cache/retrieval-heads``.

    The folder need not exist yet.
    """
    if os.environ.get(VARIABLE):
        return Path(os.environ[VARIABLE]).expanduser().absolute()
    xdg = Path(os.environ.get("XDG_CACHE_HOME", ""))
    # The XDG standard says to ignore a relative path.
    return (xdg if xdg.is_absolute() else Path.home() / ".cache") / "retrieval-heads"


def say(text: str) -> None:
    """Tell the user something on stderr, at once."""
    print(text, file=sys.stderr, flush=True)


def require_space(folder: Path, needed: int, what: str, variable: str = VARIABLE) -> None:
    """Check that the disk of ``folder`` has ``needed`` bytes free for ``what``.

    Raises:
        LoadError: it has not; ``variable`` is the environment variable that moves the folder.
    """
    existing = next(parent for parent in [folder, *folder.parents] if parent.exists())
    free = shutil.disk_usage(existing).free
    if free < needed:
        raise LoadError(
            f"{what} needs {needed / 1e9:.3f} GB in {folder}, where {free / 1e9:.3f} GB are free; "
            f"make room, or set the environment variable {variable} to a folder on a larger disk"
        )


@contextmanager
def new_folder(target: Path) -> Iterator[Path]:
    """Make the folder ``target`` in one step: write into the folder this yields; it becomes ``target`` at the end.

    Any exception inside removes what was written, and ``target`` never exists half written. Where another
    process finishes the same folder first, its folder stays and ours is removed.

    Raises:
        LoadError: the cache cannot be written to, or its disk fills up.
    """
    temporary = target.parent / f".{target.name}-{uuid.uuid4().hex}.tmp"
    try:
        temporary.mkdir(parents=True)
    except OSError as error:
        raise LoadError(
            f"cannot write to {target.parent} ({error.strerror}); "
            f"set the environment variable {VARIABLE} to a folder that can be written to"
        ) from error
    _remove_abandoned(target)
    try:
        yield temporary
        try:
            os.replace(temporary, target)  # atomic; fails where target is a folder with files in it
        except OSError:
            if not target.is_dir():
                raise
    except Exception as error:
        if "No space left" in str(error):  # safetensors wraps the OSError in its own type
            raise LoadError(
                f"the disk of {target.parent} filled up while {target.name} was written; "
                f"make room, or set the environment variable {VARIABLE} to a folder on a larger disk"
            ) from error
        raise
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _remove_abandoned(target: Path) -> None:
    """Remove what a killed process (no exception, so no clean-up) left of ``target`` more than a day ago."""
    for old in target.parent.glob(f".{target.name}-*.tmp"):
        try:
            if time.time() - old.stat().st_mtime > 24 * 3600:
                shutil.rmtree(old, ignore_errors=True)
        except OSError:
            pass  # another process removed it meanwhile


def discard(folder: Path) -> None:
    """Remove a folder of the cache; it is out of the way at once, also for other processes.

    Raises:
        LoadError: the cache cannot be written to.
    """
    aside = folder.parent / f".{folder.name}-{uuid.uuid4().hex}.tmp"
    try:
        os.replace(folder, aside)
    except FileNotFoundError:
        return  # another process was faster
    except OSError as error:
        raise LoadError(f"cannot remove {folder} ({error.strerror}); delete it by hand") from error
    shutil.rmtree(aside, ignore_errors=True)


def write_manifest(folder: Path, made_from: str) -> None:
    """Record in ``folder`` what it was made from, and the size and sha256 of each of its files."""
    files = {
        path.relative_to(folder).as_posix(): {"bytes": path.stat().st_size, "sha256": sha256(path)}
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }
    (folder / MANIFEST).write_text(json.dumps({"made_from": made_from, "files": files}, indent=1) + "\n")


def problem(folder: Path, made_from: str, quick: bool = False) -> str | None:
    """What is wrong with a folder of the cache, as a clause; None where it is as it was written.

    ``quick`` leaves out the hashes of large files (a second for half a gigabyte) and looks at their size alone.
    """
    try:
        manifest = json.loads((folder / MANIFEST).read_text())
        files, source = manifest["files"], manifest["made_from"]
    except (OSError, ValueError, KeyError, TypeError):
        return f"{MANIFEST} is missing or unreadable"
    if source != made_from:
        return f"it was made from {source}"
    for name, expected in files.items():
        path = folder / name
        if not path.is_file():
            return f"{name} is missing"
        size = path.stat().st_size
        if size != expected["bytes"]:
            return f"{name} has {size:,} bytes where {expected['bytes']:,} were written"
        if not (quick and size > LARGE) and sha256(path) != expected["sha256"]:
            return f"{name} has changed since it was written"
    return None


def sha256(path: Path) -> str:
    """The sha256 of a file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
