from __future__ import annotations

import os
import subprocess
import sys

import pytest

from retrieval_heads.models.catalog import CATALOG, Hub, WheelFile, find


@pytest.mark.parametrize("name", CATALOG)
def test_entries_say_what_they_are(name):
    entry = find(name)
    assert entry.name == name
    assert entry.parameters > 0 and entry.download_bytes > 0
    assert entry.licence and entry.description
    if isinstance(entry.source, WheelFile):
        assert len(entry.source.wheel.members[entry.source.path]) == 64
        assert entry.source.wheel.distribution in str(entry.source)
    else:
        assert isinstance(entry.source, Hub)
        assert entry.source.id.count("/") == 1


def test_an_unknown_name_is_answered_with_the_closest_and_all():
    with pytest.raises(ValueError, match="no model is called 'SmolLM-135m'; did you mean 'smollm2-135m'") as error:
        find("SmolLM-135m")
    for name in CATALOG:
        assert name in str(error.value)
    assert "hub" in str(error.value) and "folder" in str(error.value)


def test_a_name_like_no_other_gets_the_list_alone():
    with pytest.raises(ValueError, match="no model is called 'xyz'; the catalog has smollm2-135m") as error:
        find("xyz")
    assert "did you mean" not in str(error.value)


def test_the_catalog_is_light():
    code = "import sys, retrieval_heads.models.catalog; assert not {'torch', 'transformers'} & set(sys.modules)"
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    assert subprocess.run([sys.executable, "-c", code], env=environment).returncode == 0
