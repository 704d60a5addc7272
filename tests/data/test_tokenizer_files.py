"""Byte-level BPE in vocab.json and merges.txt: the ids that transformers gives, and pairs that are no pair."""

import json
from pathlib import Path

import pytest

from mlmjax.core.errors import UserError
from mlmjax.data.documents import normalise
from mlmjax.data.tokenizer import Tokenizer, TokenizerConfig

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "roberta_tokenizer.json").read_text())


@pytest.fixture
def folder(tmp_path):
    for name, text in GOLDEN["files"].items():
        (tmp_path / name).write_text(text)
    return tmp_path


@pytest.mark.parametrize("space", [False, True])
def test_ids_are_those_of_transformers(folder, space):
    (folder / "tokenizer_config.json").write_text(json.dumps({"add_prefix_space": space}))
    tokenizer, expected = Tokenizer.load(folder), GOLDEN["add_prefix_space"][str(space)]
    assert [one.ids.tolist() for one in tokenizer.encode(GOLDEN["texts"])] == expected["plain"]
    whole = tokenizer._raw.encode_batch(GOLDEN["texts"])
    assert [one.ids for one in whole] == expected["special"]
    # The library itself reads <mask> in a text where it is told to.
    tokenizer._raw.encode_special_tokens = False
    read = tokenizer._raw.encode_batch(GOLDEN["masked"], add_special_tokens=False)
    assert [one.ids for one in read] == expected["masked"]
    tokenizer._raw.encode_special_tokens = True
    for text, ids in zip(GOLDEN["masked"], expected["masked"], strict=True):
        if normalise(text) == text:
            assert tokenizer.encode_with_masks(text).ids.tolist() == ids


def test_a_space_is_put_before_a_text_only_where_the_config_says_so(folder):
    plain = Tokenizer.load(folder).encode(["array"])[0].ids.tolist()
    assert plain != Tokenizer.load(folder).encode([" array"])[0].ids.tolist()
    (folder / "tokenizer_config.json").write_text('{"add_prefix_space": true}')
    spaced = Tokenizer.load(folder)
    assert plain != spaced.encode(["array"])[0].ids.tolist()
    assert spaced.encode(["array"])[0].ids.tolist() == spaced.encode([" array"])[0].ids.tolist()


def test_specials_and_words_are_those_of_roberta(folder):
    tokenizer = Tokenizer.load(folder / "vocab.json")
    names = ("start", "padding", "separator", "unknown", "mask")
    spelled = [tokenizer.token(getattr(tokenizer.vocabulary, name)) for name in names]
    assert spelled == ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    text = "the function <mask> it's sorted"
    encoding = tokenizer.encode([text])[0]
    assert not set(encoding.ids.tolist()) & set(tokenizer.vocabulary.special)
    assert text == tokenizer.decode(encoding.ids)
    assert {text[at:].split()[0] for at in encoding.offsets[encoding.word_starts]} >= {
        "the",
        "function",
        "sorted",
    }
    by_name = (TokenizerConfig(path=str(folder / name)) for name in ("vocab.json", "merges.txt"))
    assert len({each.load().hash for each in by_name} | {tokenizer.hash}) == 1


def test_what_is_saved_is_loaded_as_the_same(folder):
    tokenizer = Tokenizer.load(folder)
    tokenizer.save(folder / "tokenizer.json")
    again = Tokenizer.load(folder)
    assert again.hash == tokenizer.hash
    texts = GOLDEN["texts"]
    ids = [[one.ids.tolist() for one in each.encode(texts)] for each in (tokenizer, again)]
    assert ids[0] == ids[1]


def _spoiled(folder, what):
    vocabulary, merges = folder / "vocab.json", folder / "merges.txt"
    ids = json.loads(vocabulary.read_text())
    match what:
        case "no merges":
            merges.unlink()
            return r"lacks .*merges\.txt, without which vocab\.json cannot be used"
        case "no vocabulary":
            vocabulary.unlink()
            return r"lacks .*vocab\.json, without which merges\.txt cannot be used"
        case "no JSON":
            vocabulary.write_text("{")
            return r"vocab\.json is no JSON"
        case "a list":
            vocabulary.write_text(json.dumps(sorted(ids)))
            return r"vocab\.json must be an object of tokens"
        case "an id twice":
            vocabulary.write_text(json.dumps(ids | {"twice": 7}))
            return r"vocab\.json must be an object of tokens, each with its own id"
        case "no bytes":
            vocabulary.write_text(json.dumps({k: v for k, v in ids.items() if k != "Ġ"}))
            return r"vocab\.json is not one of byte-level BPE: it lacks 1 of the 256"
        case "no mask":
            del ids["<mask>"]
            vocabulary.write_text(json.dumps(ids))
            return r"vocab\.json has no mask token"
        case "three tokens":
            merges.write_text(merges.read_text() + "a b c\n")
            return r"merges\.txt: 'a b c' is no merge"
        case "another vocabulary":
            merges.write_text(merges.read_text() + "qq zz\n")
            return r"merges\.txt does not go with vocab\.json: .*qq"
        case "a damaged config":
            (folder / "tokenizer_config.json").write_text("{")
            return r"tokenizer_config\.json is no JSON"
    raise AssertionError(what)


@pytest.mark.parametrize(
    "what",
    [
        "no merges",
        "no vocabulary",
        "no JSON",
        "a list",
        "an id twice",
        "no bytes",
        "no mask",
        "three tokens",
        "another vocabulary",
        "a damaged config",
    ],
)
def test_a_pair_that_cannot_be_used_is_refused_by_name(folder, what):
    message = _spoiled(folder, what)
    with pytest.raises(UserError, match=message):
        Tokenizer.load(folder)
