from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
import time
from collections import namedtuple
from pathlib import Path

import pytest

from retrieval_heads.models import cache
from retrieval_heads.models.cache import LoadError, cache_folder, new_folder, problem, require_space, write_manifest


def left_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_the_variable_moves_the_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    monkeypatch.setenv("RETRIEVAL_HEADS_CACHE", str(tmp_path / "mine"))
    assert cache_folder() == tmp_path / "mine"
    monkeypatch.setenv("RETRIEVAL_HEADS_CACHE", "")
    assert cache_folder() == tmp_path / "xdg" / "retrieval-heads"


@pytest.mark.parametrize("xdg", [None, "", "relative/path"])
def test_without_variables_the_cache_is_in_the_home_folder(monkeypatch, tmp_path, xdg):
    monkeypatch.delenv("RETRIEVAL_HEADS_CACHE", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    if xdg is None:
        monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    else:
        monkeypatch.setenv("XDG_CACHE_HOME", xdg)
    assert cache_folder() == tmp_path / ".cache" / "retrieval-heads"


def test_a_new_folder_appears_at_the_end_only(tmp_path):
    target = tmp_path / "models" / "m"
    with new_folder(target) as folder:
        (folder / "a").write_text("1")
        assert not target.exists()
    assert left_in(tmp_path / "models") == ["m"]
    assert (target / "a").read_text() == "1"


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_an_exception_leaves_nothing(tmp_path, error):
    with pytest.raises(error), new_folder(tmp_path / "m") as folder:
        (folder / "a").write_text("half")
        raise error
    assert left_in(tmp_path) == []


def test_the_first_of_two_to_finish_stays(tmp_path):
    target = tmp_path / "m"
    with new_folder(target) as slow:
        (slow / "a").write_text("slow")
        with new_folder(target) as fast:
            (fast / "a").write_text("fast")
    assert left_in(tmp_path) == ["m"]
    assert (target / "a").read_text() == "fast"


RACER = """
import sys, time
from pathlib import Path
from retrieval_heads.models.cache import new_folder
go, target, name = map(Path, sys.argv[1:])
while not go.exists():
    time.sleep(0.001)
with new_folder(target) as folder:
    for i in range(20):
        (folder / str(i)).write_text(str(name))
assert len(list(target.iterdir())) == 20
"""


def test_two_processes_race(tmp_path):
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", RACER, str(tmp_path / "go"), str(tmp_path / "out" / "m")]
    racers = [subprocess.Popen([*command, name], env=environment) for name in ("one", "two")]
    time.sleep(0.3)
    (tmp_path / "go").touch()
    assert [racer.wait(timeout=60) for racer in racers] == [0, 0]
    assert left_in(tmp_path / "out") == ["m"]
    assert len({file.read_text() for file in (tmp_path / "out" / "m").iterdir()}) == 1  # all files of one racer


def test_what_a_killed_process_left_is_removed_a_day_later(tmp_path):
    old, young = tmp_path / ".m-old.tmp", tmp_path / ".m-young.tmp"
    old.mkdir()
    young.mkdir()
    os.utime(old, (time.time() - 90_000, time.time() - 90_000))
    with new_folder(tmp_path / "m"):
        pass
    assert left_in(tmp_path) == [".m-young.tmp", "m"]


def test_a_disk_that_fills_up_says_so_and_leaves_nothing(tmp_path):
    with pytest.raises(LoadError, match="filled up while m was written.*RETRIEVAL_HEADS_CACHE"):
        with new_folder(tmp_path / "m") as folder:
            (folder / "a").write_text("half")
            raise OSError(errno.ENOSPC, "No space left on device")
    assert left_in(tmp_path) == []


def test_a_cache_that_cannot_be_written_to(tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(LoadError, match="cannot write to .*file.*RETRIEVAL_HEADS_CACHE"):
        with new_folder(tmp_path / "file" / "m"):
            pass


def test_too_little_space(tmp_path, monkeypatch):
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(10**12, 0, 2 * 10**9))
    require_space(tmp_path / "not" / "yet", 10**9, "m")
    with pytest.raises(LoadError, match=r"m needs 3.000 GB in .*yet, where 2.000 GB are free; .*HF_HOME"):
        require_space(tmp_path / "not" / "yet", 3 * 10**9, "m", variable="HF_HOME")


@pytest.fixture
def finished(tmp_path: Path) -> Path:
    folder = tmp_path / "m"
    (folder / "inner").mkdir(parents=True)
    (folder / "inner" / "a").write_text("0123456789")
    write_manifest(folder, "source 1")
    return folder


def test_an_intact_folder_has_no_problem(finished):
    assert problem(finished, "source 1") is None


def test_each_kind_of_damage_is_named(finished):
    file = finished / "inner" / "a"
    assert problem(finished, "source 2") == "it was made from source 1"
    file.write_text("012345678X")
    assert problem(finished, "source 1") == "inner/a has changed since it was written"
    file.write_text("01234")
    assert problem(finished, "source 1") == "inner/a has 5 bytes where 10 were written"
    file.unlink()
    assert problem(finished, "source 1") == "inner/a is missing"
    (finished / cache.MANIFEST).write_text('{"files"')
    assert problem(finished, "source 1") == "manifest.json is missing or unreadable"


def test_a_quick_check_looks_at_the_size_of_large_files(finished, monkeypatch):
    monkeypatch.setattr(cache, "LARGE", 5)
    (finished / "inner" / "a").write_text("012345678X")
    assert problem(finished, "source 1", quick=True) is None
    assert problem(finished, "source 1") is not None


def test_discard(finished):
    cache.discard(finished)
    cache.discard(finished)  # another process was faster
    assert left_in(finished.parent) == []
