"""Labels in batches: on request alone, those of the source however it is shuffled, for any number of workers."""

import json
import random

import numpy as np
import pytest
from made_images import noise, write_folder
from made_texts import Documents, make_texts
from pydantic import ValidationError

from mlmjax.core.errors import UserError
from mlmjax.data.beam import prepare as beam
from mlmjax.data.documents import Document, normalise
from mlmjax.data.images import ImageData
from mlmjax.data.preparation import reading
from mlmjax.data.preparation.prepare import Recipe, prepare
from mlmjax.data.preparation.tokenising import RowSettings
from mlmjax.data.prepared import PreparedText
from mlmjax.data.sources import MixturePart, TextSource
from mlmjax.data.text import TextData
from mlmjax.data.tokenizer import TokenizerConfig

TOKENIZER = TokenizerConfig(vocabulary=200)
TEXTS = make_texts(60)
CLASSES = ("10", "9", "-1")


def write(path, records):
    path.write_text("".join(json.dumps(each) + "\n" for each in records))
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Records of texts with a class, a whole number, and a second text."""
    folder = tmp_path_factory.mktemp("labels")
    records = [
        {"text": text, "label": int(CLASSES[i % 3]), "kind": "abc"[i % 3], "other": TEXTS[-i]}
        for i, text in enumerate(TEXTS)
    ]
    write(folder / "data.jsonl", records)
    return folder


def opened(folder, **options):
    defaults = {
        "root": str(folder / "data.jsonl"),
        "cache": str(folder / "cache"),
        "layout": "documents",
        "length": 48,
        "batch": 8,
        "heldout": 0.3,
        "tokenizer": TOKENIZER,
        "workers": 1,
    }
    return TextData(**{**defaults, **options}).prepare()


def batches(prepared, *, seed=0, steps=12):
    how = {"seed": seed, "batch": 8, "threads": 2}
    return [
        *prepared.batches(**how, start=0, stop=steps),
        *prepared.heldout_batches(**how),
    ]


def words(prepared, tokens):
    """The text of a row, as the tokenizer has it."""
    return [prepared.tokenizer.token(id) for id in tokens]


def test_labels_of_texts_are_those_of_the_source(folder):
    for field, names in (("label", ("-1", "9", "10")), ("kind", ("a", "b", "c"))):
        found = opened(folder, label_field=field)
        assert found.classes == names
        expected = {}
        for i, text in enumerate(TEXTS):
            ids = found.tokenizer.encode([normalise(text)])[0].ids[:46]
            expected[tuple(ids)] = CLASSES[i % 3] if field == "label" else "abc"[i % 3]
        seen = set()
        for batch in batches(found):
            for row, valid, label in zip(
                batch["tokens"], batch["valid"], batch["labels"], strict=True
            ):
                if not valid.any():
                    assert label == -1
                    continue
                text = tuple(row[1 : valid.sum() - 1])
                assert found.classes[label] == expected[text]
                seen.add(text)
        assert len(seen) == len(TEXTS)
        counts = [found.manifest["splits"][side]["classes"] for side in ("train", "heldout")]
        np.testing.assert_array_equal(np.sum(counts, axis=0), [20, 20, 20])


def test_without_request_no_batch_holds_labels(folder):
    spec = TextData(layout="documents", length=48).spec()
    assert "labels" not in spec
    assert "labels" not in TextData().spec()
    assert "labels" not in ImageData().spec()
    found = opened(folder)
    assert found.classes == ()
    assert all(batch.keys() == spec.keys() for batch in batches(found, steps=1))
    images = ImageData(size=(8, 8), channels=1, cache=str(folder / "cache"))
    found = images.prepare()
    assert found.classes
    assert all(batch.keys() == images.spec().keys() for batch in batches(found, steps=1))


def test_labels_do_not_depend_on_workers_or_blocks(tmp_path, monkeypatch):
    texts = make_texts(90)
    draw = random.Random(0)
    labels = [draw.choice(["left", "right", "middle"]) for _ in texts]
    documents = [Document(t, label=c) for t, c in zip(texts, labels, strict=True)]
    recipe = Recipe(TOKENIZER, RowSettings(32, "documents"), 0.2, labels=True)
    tables = []
    for workers, block in ((1, 1 << 23), (2, 4000)):
        monkeypatch.setattr(reading, "BLOCK", block)
        monkeypatch.setattr(reading, "TASK", block)
        source = Documents(documents, per_part=20)
        place = prepare([source], recipe, folder=tmp_path / str(workers), workers=workers)
        found = PreparedText.open(place)
        assert found.classes == ("left", "middle", "right")
        tables.append(
            [
                sorted(zip(map(bytes, each["tokens"]), each["label"].tolist(), strict=True))
                for each in (rows.read(range(len(rows))) for rows in (found.train, found.heldout))
            ]
        )
    assert tables[0] == tables[1]


def test_pairs_share_a_row_and_the_longer_is_cut_first(folder):
    found = opened(folder, label_field="label", pair_field="other", length=24)
    vocabulary = found.vocabulary
    whole = {}
    for i, text in enumerate(TEXTS):
        pair = found.tokenizer.encode([normalise(text), normalise(TEXTS[-i])])
        whole[i] = [each.ids.tolist() for each in pair]
    rows = found.train.read(range(len(found.train)))
    for row in rows:
        used = row["used"]
        assert row["tokens"][0] == vocabulary.start
        ends = np.flatnonzero(row["tokens"][:used] == vocabulary.separator)
        assert len(ends) == 2
        assert ends[1] == used - 1
        first, second = row["tokens"][1 : ends[0]], row["tokens"][ends[0] + 1 : ends[1]]
        np.testing.assert_array_equal(row["segments"][: ends[0] + 1], 0)
        np.testing.assert_array_equal(row["segments"][ends[0] + 1 : used], 1)
        (pair,) = [
            (a, b)
            for a, b in whole.values()
            if a[: len(first)] == first.tolist() and b[: len(second)] == second.tolist()
        ]
        sizes = [len(each) for each in pair]
        while sum(sizes) > 21:
            sizes[int(sizes[1] >= sizes[0])] -= 1
        assert abs(len(first) - sizes[0]) <= 1
        assert len(first) + len(second) == sum(sizes)


def test_a_pair_may_have_an_empty_side_and_copies_are_of_both(tmp_path):
    one, other, third = TEXTS[:3]
    pairs = [(one, other), (one, third), (one, other), ("", other), (one, " "), (None, one)]
    pairs += [(text, one) for text in TEXTS[5:25]]
    records = [{"text": a, "other": b, "label": i % 2} for i, (a, b) in enumerate(pairs)]
    write(tmp_path / "data.jsonl", records)
    found = opened(tmp_path, label_field="label", pair_field="other", heldout=0.1)
    counts = found.manifest["documents"]
    assert (counts["duplicates"], counts["null"], counts["kept"]) == (1, 1, 24)


@pytest.mark.parametrize(
    ("record", "sentence"),
    [
        ({"text": "There is none."}, r"data.jsonl:61: there is no field 'label' \(--data.label-"),
        ({"text": "A null.", "label": None}, r"data.jsonl:61: the field 'label' is empty"),
        (
            {"text": "Half.", "label": 0.5},
            r"holds a number, not a string or an integer \(--data.la",
        ),
    ],
)
def test_a_document_without_a_class_is_named_or_left_out(folder, tmp_path, record, sentence):
    text = (folder / "data.jsonl").read_text() + json.dumps(record) + "\n"
    (tmp_path / "data.jsonl").write_text(text)
    with pytest.raises(UserError, match=sentence) as refused:
        opened(tmp_path, label_field="label")
    assert "--data.on-error skip" in str(refused.value)
    found = opened(tmp_path, label_field="label", on_error="skip")
    assert found.manifest["documents"]["broken"] == 1
    assert found.manifest["documents"]["kept"] == len(TEXTS)


def test_what_cannot_have_labels_is_refused(folder, tmp_path):
    (tmp_path / "plain.txt").write_text("\n\n\n".join(TEXTS))
    for option in ("label_field", "pair_field"):
        with pytest.raises(ValidationError, match=f"{option} needs rows of one document"):
            TextData(**{option: "label"})
        part: MixturePart = TextSource(root=str(folder), **{option: "label"})
        with pytest.raises(ValidationError, match=option):
            TextData(mixture=(part,), layout="full" if option == "pair_field" else "documents")
        with pytest.raises(UserError, match=r"is plain text, which has no field 'label'"):
            opened(tmp_path, root=str(tmp_path / "plain.txt"), **{option: "label"})
    recipe = Recipe(TOKENIZER.updated(path="x"), RowSettings(32, "documents"), labels=True)
    with pytest.raises(UserError, match=r"Rows with classes .* leave it away"):
        beam.prepare([], recipe, runner="DirectRunner")


def test_columns_of_labels_are_checked(folder, tmp_path):
    pa = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    table = pa.table({"text": TEXTS, "label": [i % 2 for i in range(60)], "share": [0.5] * 60})
    parquet.write_table(table, tmp_path / "data.parquet")
    root = str(tmp_path / "data.parquet")
    found = opened(tmp_path, root=root, label_field="label")
    assert found.classes == ("0", "1")
    with pytest.raises(UserError, match=r"has no column 'kind' \(--data\.label-field\)"):
        opened(tmp_path, root=root, label_field="kind")
    with pytest.raises(UserError, match=r"holds double, not strings or integers"):
        opened(tmp_path, root=root, label_field="share")


def test_labels_of_images_are_those_of_the_source(tmp_path):
    """Also where some images have none: those are left out."""
    images = {f"{'abc'[i % 3]}/{i:02}": noise(6, 6, 1, seed=i) for i in range(30)}
    root = write_folder(tmp_path / "images", images | {"99": noise(6, 6, 1, seed=99)})
    labels = {pixels.tobytes(): name[0] for name, pixels in images.items()}
    data = ImageData(
        root=str(root), size=(6, 6), channels=1, heldout=0.3, cache=str(tmp_path), labels=True
    )
    found = data.prepare()
    for side in ("train", "heldout"):
        rows = list(found.examples(side, batch=5))
        np.testing.assert_array_equal(
            np.concatenate([each["labels"] for each in rows]), found.labels(side)
        )
    seen = set()
    for batch in batches(found):
        assert batch.keys() == data.spec().keys()
        for pixels, valid, label in zip(
            batch["pixels"], batch["valid"], batch["labels"], strict=True
        ):
            if valid:
                assert found.classes[label] == labels[pixels.tobytes()]
                seen.add(pixels.tobytes())
            else:
                assert label == -1
    assert seen == set(labels)


def test_images_without_labels_are_refused(tmp_path):
    images = {f"{i:02}": noise(6, 6, 1, seed=i) for i in range(12)}
    root = write_folder(tmp_path / "images", images)
    data = ImageData(root=str(root), size=(6, 6), channels=1, heldout=0.3, cache=str(tmp_path))
    data.prepare()
    with pytest.raises(
        UserError, match=r"No training image of .* has a label.*--data\.label-field"
    ):
        data.updated(labels=True).prepare()
