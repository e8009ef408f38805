"""pyproject.toml, constraints.txt and environment.yml say the same thing."""

import re
import tomllib
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]

# What conda calls differently from PyPI.
CONDA_NAMES = {"pytorch-gpu": "torch"}


def requirements(*groups):
    """{name: specifier} of the given lists of requirements."""
    parsed = [Requirement(line) for group in groups for line in group]
    return {canonicalize_name(requirement.name): requirement.specifier for requirement in parsed}


def read_constraints():
    """The pins of constraints.txt, as [(name, version)] in its order."""
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pins = [line.split("==") for line in lines if line and not line.startswith("#")]
    assert all(len(pin) == 2 for pin in pins), "constraints.txt: every line is name==version"
    return [(canonicalize_name(name), Version(version)) for name, version in pins]


def read_environment():
    """environment.yml's conda specifications, as {PyPI's name: specifier}, and the lines of its pip section."""
    entries = yaml.safe_load((ROOT / "environment.yml").read_text())["dependencies"]
    conda, pip = {}, []
    for entry in entries:
        if isinstance(entry, dict):
            pip += entry["pip"]
            continue
        name, _, spec = entry.partition(" ")
        # conda's `=3.11` is pip's `==3.11.*`
        conda[CONDA_NAMES.get(name, name)] = SpecifierSet(re.sub(r"^=([\d.]+)$", r"==\1.*", spec))
    return conda, pip


INSTALLED = requirements(PROJECT["dependencies"], EXTRAS["book"], EXTRAS["test"])
EVERYTHING = requirements(PROJECT["dependencies"], *EXTRAS.values())


@pytest.mark.parametrize("name", sorted(INSTALLED))
def test_every_dependency_is_pinned_within_its_range(name):
    pins = dict(read_constraints())
    assert name in pins, f"constraints.txt does not pin {name}: make constraints"
    assert pins[name] in INSTALLED[name], f"constraints.txt pins {name} {pins[name]}; pyproject asks {INSTALLED[name]}"


def test_constraints_hold_on_every_platform():
    pins = read_constraints()
    names = [name for name, _ in pins]
    assert len(set(names)) == len(names), "a package is pinned twice"
    assert "retrieval-heads" not in names
    assert [f"{name} {version}" for name, version in pins if version.local] == [], "a build (+cpu, +cu128) is pinned"


def test_pyproject_leaves_the_build_of_torch_to_the_machine():
    assert [str(spec) for spec in INSTALLED["torch"] if spec.operator in ("==", "===", "<", "<=", "~=")] == []


def test_conda_installs_the_project_with_all_its_extras():
    _, pip = read_environment()
    editable = [line for line in pip if line.startswith("-e ")]
    assert len(editable) == 1
    requirement = re.fullmatch(r"-e \.\[(?P<extras>[a-z,]+)\]", editable[0])
    assert requirement, f"not an editable install of this folder: {editable[0]!r}"
    assert set(requirement["extras"].split(",")) == set(EXTRAS)


def test_conda_asks_for_what_pyproject_asks_for():
    conda, pip = read_environment()
    named = {name: spec for name, spec in conda.items() if name not in ("python", "pip")}
    named |= requirements([line for line in pip if not line.startswith("-")])
    unknown = set(named) - set(EVERYTHING)
    assert not unknown, f"environment.yml names what pyproject does not: {sorted(unknown)}"
    assert named == {name: EVERYTHING[name] for name in named}


def test_conda_brings_everything_that_needs_cuda():
    conda, _ = read_environment()
    assert {"torch", *requirements(EXTRAS["gpu"])} <= set(conda)


def test_the_pinned_versions_satisfy_conda_too():
    conda, _ = read_environment()
    pins = dict(read_constraints())
    outside = {name: str(spec) for name, spec in conda.items() if name in pins and pins[name] not in spec}
    assert not outside, f"environment.yml excludes the versions of constraints.txt: {outside}"


def test_conda_has_a_python_that_the_package_accepts():
    conda, _ = read_environment()
    minor = re.fullmatch(r"==(3\.\d+)\.\*", str(conda["python"]))
    assert minor, f"environment.yml: python is not one minor version but {conda['python']}"
    assert Version(minor[1]) in SpecifierSet(PROJECT["requires-python"])
