"""Plain text files and the documentation that installs carry."""

from pathlib import Path

import pytest

from mlmjax.core.errors import UserError
from mlmjax.data import samples
from mlmjax.data.samples import PyDocs, clean, pydocs
from mlmjax.data.sources import TextFiles


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "sub").mkdir()
    (tmp_path / "b.txt").write_text("One.\n\nStill one.\n\n\nTwo.\n")
    (tmp_path / "sub" / "a.txt").write_bytes("\ufeffDrei.\r\n\r\n\r\nVier.".encode())
    (tmp_path / "c.md").write_text("no")
    return tmp_path


def test_a_file_a_folder_and_patterns(folder):
    whole = [(d.text.strip(), d.group) for d in TextFiles(str(folder))]
    assert whole == [
        ("One.\n\nStill one.", "b.txt"),
        ("Two.", "b.txt"),
        ("Drei.", "sub/a.txt"),
        ("Vier.", "sub/a.txt"),
    ]
    assert len(list(TextFiles(str(folder / "b.txt")))) == 2
    assert len(list(TextFiles(f"{folder}/**/*.txt"))) == 4
    assert len(list(TextFiles(f"{folder}/s*/?.txt"))) == 2
    assert [d.group for d in TextFiles(f"{folder}/*.md")] == ["c.md"]


def test_a_relative_pattern(folder, monkeypatch):
    monkeypatch.chdir(folder)
    assert len(list(TextFiles("*.txt"))) == 2
    assert len(list(TextFiles("sub/*.txt"))) == 2


def test_the_digest_follows_names_and_content(folder, tmp_path_factory):
    first = TextFiles(str(folder)).digest()
    assert TextFiles(str(folder)).digest() == first
    (folder / "b.txt").write_text("Other.")
    assert TextFiles(str(folder)).digest() != first


def told(root, match):
    with pytest.raises(UserError, match=match):
        list(TextFiles(str(root)))


def test_bad_input_is_told(tmp_path, monkeypatch):
    told(tmp_path / "none", "no file or folder .*none .--data.root")
    told(tmp_path, "no .txt file")
    told(f"{tmp_path}/*.txt", "No file matches")
    told(f"{tmp_path}/none/*.txt", "No file matches")
    (tmp_path / "empty.txt").write_text(" \n\n\n\n")
    told(tmp_path, "every file in it is empty")
    (tmp_path / "latin.txt").write_bytes("Gr\xfc\xdfe".encode("latin-1"))
    told(tmp_path, r"latin.txt is not UTF-8 .*byte 2 is 0xfc")
    monkeypatch.setattr(type(TextFiles(str(tmp_path))._files[0][1]), "read_bytes", denied)
    told(tmp_path, "empty.txt cannot be read .*Permission denied")


def denied(path):
    raise PermissionError(13, "Permission denied", str(path))


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
    assert found == list(PyDocs(("jaxtyping",)))
    assert len(found) > 10
    assert {d.label for d in found} == {"jaxtyping"}
    assert all(d.group.startswith("jaxtyping") for d in found)
    assert PyDocs(("jaxtyping",)).digest() == PyDocs(("jaxtyping",)).digest()


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
