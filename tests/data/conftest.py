"""Sources of small texts."""

import pytest
from made_texts import Documents, make_texts

from mlmjax.data.documents import Document


@pytest.fixture
def texts():
    return make_texts(200)


@pytest.fixture
def source(texts):
    """200 documents in 40 groups."""
    return Documents([Document(text, f"g{i % 40}", f"l{i % 3}") for i, text in enumerate(texts)])
