"""Tokenizers: literal specials are text, training is repeatable, bad files are told."""

import json
import os
import random
import subprocess
import sys

import numpy as np
import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from made_texts import make_texts
from tokenizers import models, pre_tokenizers

from mlmjax.core.errors import UserError
from mlmjax.data.encoding import Memory, divisible
from mlmjax.data.tokenizer import Tokenizer, TokenizerConfig

KINDS = ("wordpiece", "byte_bpe", "unigram")
LITERALS = ("[MASK]", "[PAD]", "[CLS]", "[SEP]", "[UNK]")


def train(kind, **options):
    return TokenizerConfig(model=kind, vocabulary=400, **options).train(make_texts(100))


def vocabulary_file(path, tokens=("return", "a", "new", "##s", "list", "mask", "[", "]", ".", "p")):
    path.write_text("\n".join([*LITERALS, *tokens]) + "\n")
    return path


@pytest.fixture(scope="module")
def every(tmp_path_factory):
    """Each kind as trained and as saved and loaded, and a lower-casing vocab.txt."""
    folder = tmp_path_factory.mktemp("tokenizers")
    found = {"vocab.txt": Tokenizer.load(vocabulary_file(folder / "vocab.txt"))}
    for kind in KINDS:
        found[kind] = train(kind)
        found[kind].save(folder / f"{kind}.json")
        found[f"{kind}.json"] = Tokenizer.load(folder / f"{kind}.json")
    # It reads [MASK] in a text as its own, being an ordinary piece of it.
    found["cased unigram"] = train("unigram", lowercase=False)
    return found


def test_a_token_in_a_text_has_no_sign_for_a_space(every):
    text = "Return a new list."
    for name in KINDS:
        tokenizer = every[name]
        spelled = [tokenizer.spelled(tokenizer.token(i)) for i in tokenizer.encode([text])[0].ids]
        signs = set("".join(spelled)) - set(text)
        assert signs <= ({"#"} if name == "wordpiece" else set())


def test_special_tokens_alone_are_not_enough(tmp_path):
    with pytest.raises(UserError, match=r"only\.txt has special tokens only"):
        Tokenizer.load(vocabulary_file(tmp_path / "only.txt", tokens=()))


NAMES = ("vocab.txt", "cased unigram", *KINDS, *(f"{kind}.json" for kind in KINDS))


@pytest.mark.parametrize("name", NAMES)
@given(parts=st.lists(st.sampled_from([*LITERALS, "[mask]", " ", "list", "."]), max_size=8))
def test_literal_specials_are_text(every, name, parts):
    tokenizer = every[name]
    vocabulary = tokenizer.vocabulary
    ids = tokenizer.encode(["".join(parts)])[0].ids
    forbidden = set(vocabulary.special) - {vocabulary.unknown}
    assert not forbidden & set(ids.tolist())


def test_a_literal_special_that_is_an_ordinary_piece_is_text_too():
    """Some vocabularies hold [MASK] as a piece of the model itself."""
    pieces = [("<pad>", 0.0), ("<unk>", 0.0), ("<s>", 0.0), ("</s>", 0.0), ("<mask>", -1.0)]
    letters = [(c, -5.0) for c in "▁<>/amskliptw"]
    raw = tokenizers.Tokenizer(models.Unigram(pieces + letters, unk_id=1))
    raw.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer = Tokenizer(raw)
    found = tokenizer.encode(["a <mask> list", "<pad>mask"])
    for one in found:
        assert not {0, 2, 3, 4} & set(one.ids.tolist())
    assert tokenizer.mask_token == "<mask>"
    assert (tokenizer.encode_with_masks("a <mask> list").ids == 4).sum() == 1


@pytest.mark.parametrize("name", NAMES)
def test_a_prompt_has_masks_and_no_other_special(every, name):
    tokenizer = every[name]
    found = tokenizer.encode_with_masks("Return a new [MASK] of [PAD] [MASK].")
    vocabulary = tokenizer.vocabulary
    assert (found.ids == vocabulary.mask).sum() == 2
    others = set(vocabulary.special) - {vocabulary.mask, vocabulary.unknown}
    assert not others & set(found.ids.tolist())
    assert found.word_starts[found.ids == vocabulary.mask].all()
    assert (np.diff(found.offsets) >= 0).all()


def test_a_prompt_without_masks_or_text():
    tokenizer = train("wordpiece")
    assert len(tokenizer.encode_with_masks("").ids) == 0
    assert tokenizer.encode_with_masks("[MASK]").ids.tolist() == [tokenizer.vocabulary.mask]


@pytest.mark.parametrize("kind", KINDS)
def test_trained_tokenizers_survive_saving(every, kind):
    first, second = every[kind], every[f"{kind}.json"]
    text = "Return a new sorted list, of the given values."
    assert first.hash == second.hash
    assert first.encode([text])[0].ids.tolist() == second.encode([text])[0].ids.tolist()
    assert first.vocabulary == second.vocabulary
    assert first.vocabulary.special == (0, 1, 2, 3, 4)
    assert "sorted list" in first.decode(first.encode([text])[0].ids)


@pytest.mark.parametrize("kind", KINDS)
def test_training_gives_the_same_bytes_in_another_process(every, kind):
    code = f"from test_tokenizer import train; import sys; sys.stdout.write(train({kind!r}).hash)"
    found = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert found.stdout == every[kind].hash


@pytest.mark.parametrize("kind", KINDS)
def test_the_vocabulary_has_the_size_that_was_asked(kind):
    tokenizer = TokenizerConfig(model=kind, vocabulary=300).train(make_texts(200))
    assert tokenizer.vocabulary.size <= 300
    assert tokenizer.vocabulary.size > 200 or kind != "byte_bpe"


@pytest.mark.parametrize("kind", KINDS)
def test_a_big_alphabet_leaves_room(kind):
    texts = ["".join(map(chr, range(0x4E00, 0x4E00 + 3000)))]
    tokenizer = TokenizerConfig(model=kind, vocabulary=300).train(texts)
    assert tokenizer.vocabulary.size <= 300


def test_case():
    lower = train("wordpiece").encode(["Return LIST"])[0].ids.tolist()
    assert lower == train("wordpiece").encode(["return list"])[0].ids.tolist()
    cased = TokenizerConfig(vocabulary=400, lowercase=False).train(make_texts(100))
    assert "Text" in [cased.token(i) for i in range(cased.vocabulary.size)]


def test_special_names_of_roberta_are_known(tmp_path):
    names = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    raw = tokenizers.Tokenizer(
        models.WordLevel({n: i for i, n in enumerate([*names, "a"])}, "<unk>")
    )
    raw.add_special_tokens(names)
    raw.enable_padding(length=20)
    raw.enable_truncation(2)
    raw.save(str(tmp_path / "tokenizer.json"))
    tokenizer = Tokenizer.load(tmp_path)
    found = tokenizer.vocabulary
    assert (found.start, found.padding, found.separator, found.unknown, found.mask) == (
        0,
        1,
        2,
        3,
        4,
    )
    assert len(tokenizer.encode(["a"])[0].ids) == 1


def test_bad_files_are_told(tmp_path):
    def told(path, match):
        with pytest.raises(UserError, match=match):
            Tokenizer.load(path)

    told(tmp_path / "none.json", "no tokenizer at .*none.json")
    told(tmp_path, "tokenizer.json")
    for name, content, match in [
        ("broken.json", b"{", "broken.json is not a tokenizer"),
        ("other.json", b'{"a": 1}', "other.json is not a tokenizer"),
        ("binary.json", b"\xff\xfe", "binary.json cannot be read"),
        ("empty.txt", b"", "empty.txt is empty"),
        ("twice.txt", b"[PAD]\na\na\n", "repeats the token 'a'"),
        ("maskless.txt", b"[PAD]\n[UNK]\n[CLS]\n[SEP]\na\n", "maskless.txt has no mask token"),
    ]:
        (tmp_path / name).write_bytes(content)
        told(tmp_path / name, match)


def test_a_fingerprint_follows_the_content_not_the_path(tmp_path):
    first = TokenizerConfig(path=str(vocabulary_file(tmp_path / "vocab.txt"))).fingerprint()
    (tmp_path / "other").mkdir()
    moved = vocabulary_file(tmp_path / "other" / "vocab.txt")
    assert TokenizerConfig(path=str(moved)).fingerprint() == first
    vocabulary_file(moved, tokens=("b",))
    assert TokenizerConfig(path=str(moved)).fingerprint() != first
    assert TokenizerConfig().fingerprint() != TokenizerConfig(vocabulary=100).fingerprint()
    assert json.dumps(first)


def same(one, other):
    return all(
        np.array_equal(getattr(one, name), getattr(other, name))
        for name in ("ids", "word_starts", "offsets")
    )


PARTS = [
    "return",
    " new",
    "list.",
    " ",
    "  ",
    "\n",
    "\n\n",
    "\t",
    ",",
    "\u0301",
    "\u00a0",
    "\u3000",
    "\u4e16",
]
PARTS += ["\x1c", "\x85", "\x00", "\U0001f600", "'s", *LITERALS]


@given(texts=st.lists(st.lists(st.sampled_from(PARTS)).map("".join), min_size=1, max_size=20))
def test_a_text_has_the_tokens_that_the_library_gives_for_the_whole(every, texts):
    for name in NAMES:
        whole = every[name]._encode_whole(texts).split()
        memory = Memory(every[name]._encode_whole, limit=200)
        for begin in (0, len(texts) // 2):  # the second time some is known, and some forgotten
            found = memory.encode(texts[begin:]).split()
            assert all(map(same, found, whole[begin:]))
        assert all(map(same, every[name].encode(texts), whole))


@given(seed=st.integers(0, 100), limit=st.sampled_from([0, 500, 3000]))
def test_what_is_remembered_is_bounded_and_changes_nothing(every, seed, limit):
    draw = random.Random(seed)
    memory = Memory(every["unigram"]._encode_whole, limit=limit)
    for _ in range(10):
        texts = ["".join(draw.choices(PARTS, k=draw.randint(1, 60))) for _ in range(5)]
        whole = every["unigram"]._encode_whole(texts).split()
        assert all(map(same, memory.encode(texts).split(), whole))
        # Those of the last call are remembered in any case.
        assert memory._size <= limit + sum(map(len, texts)) * 17
        assert len(memory._known.edges) == len(memory._places) + 1 == len(memory._uses) + 1


@pytest.mark.parametrize("kind", KINDS)
def test_tokenizers_that_are_trained_here_encode_word_by_word(every, kind):
    assert divisible(every[kind]._raw)


def test_a_tokenizer_that_looks_across_spaces_encodes_whole_texts(every):
    def made(change):
        raw = tokenizers.Tokenizer.from_str(every["byte_bpe"]._raw.to_str())
        change(raw)
        return raw

    def replacing(raw):
        raw.normalizer = tokenizers.normalizers.Replace("a b", "c")

    def splitting(raw):
        raw.pre_tokenizer = pre_tokenizers.Sequence(
            [pre_tokenizers.Split(" a", "isolated"), pre_tokenizers.Whitespace()]
        )

    def removing(raw):
        raw.normalizer = tokenizers.normalizers.StripAccents()

    def whole_texts(raw):
        raw.pre_tokenizer = pre_tokenizers.ByteLevel(use_regex=False)

    def adding(raw):
        raw.add_tokens(["new list"])

    def nothing(raw):
        raw.pre_tokenizer = None

    for change in (replacing, removing, splitting, whole_texts, adding, nothing):
        assert not divisible(made(change))
    found = Tokenizer(made(adding))
    assert "new list" in [found.token(i) for i in found.encode(["Return a new list."])[0].ids]
