"""The documentation that installs carry."""

import pickle
from pathlib import Path

import pytest

from mlmjax.data import samples
from mlmjax.data.documents import Part, Source, documents_of
from mlmjax.data.samples import PyDocs, clean, pydocs


def test_docstrings_are_cleaned():
    text = """Compute :func:`~a.b` of ``x``.

    Parameters
    ----------
    x : int
        As in :ref:`that text <target>`.

    .. math::

        x^2

    .. versionadded:: 1.2

    Examples
    --------
    >>> f(1)
    2

    Notes::

        end
    """
    found = clean(text)
    assert found.startswith("Compute a.b of x.")
    for gone in ("---", ">>>", "x^2", "::", "`", "target", "\n2\n"):
        assert gone not in found
    for kept in ("that text", "x : int", "Notes:", "end"):
        assert kept in found


def test_odd_files_are_left_out(tmp_path, monkeypatch):
    files = {
        "good": b'"""Good."""\nclass A:\n    """A."""\n    def f(self):\n        "f"\n',
        "broken": b"def f(:",
        "null": b"a\0b",
        "latin": b'# coding: latin-1\n"""\xfc"""',
        "bytes": b'"""\xfc"""',
        "deep": b"(" * 5000,
        "escape": b'"""An \\escape."""\nif True:\n    def g():\n        """Inside."""',
    }
    for name, content in files.items():
        (tmp_path / f"{name}.py").write_bytes(content)
    monkeypatch.setattr(samples.sysconfig, "get_path", lambda name: str(tmp_path))
    found = [(d.text, d.group) for d in pydocs(packages=("no_such_package",))]
    assert found == [
        ("An \\escape.", "escape"),
        ("Inside.", "escape"),
        ("Good.", "good"),
        ("A.", "good"),
        ("f", "good"),
        ("ü", "latin"),
    ]


def test_documentation_of_one_package(monkeypatch, tmp_path):
    monkeypatch.setattr(samples.sysconfig, "get_path", lambda name: str(tmp_path))
    found = list(pydocs(packages=("jaxtyping",)))
    assert found == list(documents_of(PyDocs(("jaxtyping",))))
    assert len(found) > 10
    assert {d.label for d in found} == {"jaxtyping"}
    assert all(d.group.startswith("jaxtyping") for d in found)
    assert PyDocs(("jaxtyping",)).digest() == PyDocs(("jaxtyping",)).digest()


def test_parts_are_read_apart(monkeypatch, tmp_path):
    for number in range(10):
        (tmp_path / f"m{number}.py").write_text(f'"""Module {number}."""' + "\n" * 100)
    monkeypatch.setattr(samples.sysconfig, "get_path", lambda name: str(tmp_path))
    monkeypatch.setattr(samples, "PART", 300)
    source = PyDocs(packages=())
    parts = source.parts()
    assert isinstance(source, Source)
    assert isinstance(parts[0], Part)
    assert [len(part.files) for part in parts] == [3, 3, 3, 1]
    assert sum(part.size for part in parts) == sum(f.stat().st_size for f in tmp_path.iterdir())
    again = pickle.loads(pickle.dumps(parts))
    assert [d.text for part in again for d in part.read(pytest.fail)] == [
        f"Module {number}." for number in range(10)
    ]
    assert {part.name for part in parts} == {
        f"the documentation of m{n} and others" for n in (0, 3, 6, 9)
    }


def test_topics_are_documents_of_their_own(monkeypatch, tmp_path):
    (tmp_path / "pydoc_data").mkdir()
    real = Path(__import__("pydoc_data.topics").__path__[0]) / "topics.py"
    (tmp_path / "pydoc_data" / "topics.py").write_bytes(real.read_bytes())
    monkeypatch.setattr(samples.sysconfig, "get_path", lambda name: str(tmp_path))
    found = {d.group: d.text for d in pydocs(packages=())}
    assert len(found) > 50
    assert len(found["pydoc_data.topics.assert"]) > 100


@pytest.mark.slow
def test_all_documentation_is_enough_text():
    found = list(pydocs())
    assert {d.label for d in found} == {"python", "numpy", "scipy", "jax"}
    assert sum(len(d.text) for d in found) > 7_000_000
    assert found == list(pydocs())
