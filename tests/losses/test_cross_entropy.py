"""Cross-entropy in chunks: the plain one's values and gradients, in less memory, on any devices."""

import math
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special
from hypothesis import example, given, settings
from hypothesis import strategies as st
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from mlmjax.core.errors import UserError
from mlmjax.losses import TokenLoss, chunked_cross_entropy, cross_entropy, full_cross_entropy
from mlmjax.losses.cross_entropy import _Chunks

WIDTH = 5


def inputs(tokens, columns, vocabulary, *, width=WIDTH, dtype="float32", scale=1.0):
    keys = jax.random.split(jax.random.key(tokens * 1000 + columns), 4)
    return (
        (scale * jax.random.normal(keys[0], (tokens, width))).astype(dtype),
        jax.random.normal(keys[1], (columns, width)),
        jax.random.normal(keys[2], (columns,)),
        jax.random.randint(keys[3], (tokens,), 0, vocabulary),
    )


def gradients(loss, arguments, weight=1.0, **options):
    """Loss, correct, and the gradients of hidden, table and bias."""

    def total(hidden, table, bias):
        result = loss(hidden, table, bias, arguments[3], **options)
        return (result.loss * weight).sum(), result

    (_, result), grads = jax.jit(jax.value_and_grad(total, (0, 1, 2), has_aux=True))(*arguments[:3])
    return result, grads


def exact(arguments, vocabulary, weight=1.0):
    """The same by the textbook, in float64."""
    hidden, table, bias = (np.asarray(array, np.float64) for array in arguments[:3])
    labels, rows = np.asarray(arguments[3]), np.arange(len(hidden))
    logits = (hidden @ table.T + bias)[:, :vocabulary]
    correct = logits[rows, labels] == logits.max(axis=1)
    logits -= scipy.special.logsumexp(logits, axis=1, keepdims=True)
    error = np.zeros((len(hidden), len(table)))
    error[:, :vocabulary] = np.exp(logits)
    error[rows, labels] -= 1
    error *= np.broadcast_to(weight, len(hidden))[:, None]
    grads = (error @ table, error.T @ hidden, error.sum(axis=0))
    loss = jnp.asarray(-logits[rows, labels], jnp.float32)
    return TokenLoss(loss, jnp.asarray(correct)), grads


def assert_same(first, second, tolerance):
    np.testing.assert_array_equal(first[0].correct, second[0].correct)
    for one, two in zip(jax.tree.leaves(first), jax.tree.leaves(second), strict=True):
        np.testing.assert_allclose(
            np.asarray(one, np.float64), np.asarray(two, np.float64), rtol=tolerance, atol=tolerance
        )


@st.composite
def shapes(draw):
    columns = draw(st.integers(1, 61))
    return (
        draw(st.integers(1, 9)),
        columns,
        draw(st.integers(1, columns)),
        draw(st.integers(1, 70)),
    )


@settings(max_examples=3)
@given(shapes())
@example((3, 61, 61, 10))  # prime: contiguous chunks, the last of which begins early
@example((3, 61, 11, 10))  # chunks of padding alone
@example((3, 11, 11, 2))
@example((3, 48, 40, 10))  # strided
@example((3, 7, 7, 70))
def test_chunks_give_the_plain_loss_and_gradients(shape):
    tokens, columns, vocabulary, chunk = shape
    arguments = inputs(tokens, columns, vocabulary)
    weight = jnp.arange(tokens) / 2  # the first has none
    chunked = gradients(
        chunked_cross_entropy, arguments, weight, vocabulary=vocabulary, chunk=chunk
    )
    assert_same(chunked, exact(arguments, vocabulary, weight), 2e-5)


def test_the_plain_loss_is_right_too():
    arguments = inputs(9, 61, 50)
    plain = gradients(full_cross_entropy, arguments, vocabulary=50)
    assert_same(plain, exact(arguments, 50), 2e-5)
    assert_same(gradients(chunked_cross_entropy, arguments, vocabulary=50, chunk=16), plain, 2e-5)


def test_labels_in_every_chunk():
    hidden, table, bias, _ = inputs(61, 61, 61)
    arguments = (hidden, table, bias, jnp.arange(61))
    chunked = gradients(chunked_cross_entropy, arguments, vocabulary=61, chunk=8)
    assert_same(chunked, exact(arguments, 61), 2e-5)


@pytest.mark.parametrize("columns", [61, 64])
def test_bfloat16_adds_up_in_float32_and_keeps_the_types(columns):
    arguments = inputs(8, columns, 60, width=64, dtype="bfloat16")
    chunked = gradients(chunked_cross_entropy, arguments, vocabulary=60, chunk=16)
    assert chunked[0].loss.dtype == jnp.float32
    assert [grad.dtype for grad in chunked[1]] == [jnp.bfloat16, jnp.float32, jnp.float32]
    # The products see the table as bfloat16 holds it.
    rounded = arguments[1].astype(jnp.bfloat16)
    reference = exact((arguments[0], rounded, *arguments[2:]), 60)
    np.testing.assert_allclose(chunked[0].loss, reference[0].loss, rtol=1e-5)
    for one, two in zip(chunked[1], reference[1], strict=True):
        np.testing.assert_allclose(np.asarray(one, np.float32), two, rtol=0.02, atol=0.02)


@pytest.mark.parametrize("columns", [61, 64])
@pytest.mark.parametrize("scale", [1e4, 1e-30])
def test_extreme_logits_stay_finite(columns, scale):
    arguments = inputs(8, columns, 60, scale=scale)
    chunked = gradients(chunked_cross_entropy, arguments, vocabulary=60, chunk=16)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(chunked))
    np.testing.assert_allclose(chunked[0].loss, exact(arguments, 60)[0].loss, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(("columns", "vocabulary"), [(61, 50), (64, 50), (64, 3)])
def test_padding_has_no_probability_and_no_gradient(columns, vocabulary):
    hidden, table, bias, labels = inputs(8, columns, vocabulary)
    # Padding that would win, were it counted; a padded column must not even reach a sum as NaN.
    arguments = (hidden, table, bias.at[vocabulary:].set(1e6), labels)
    result, (_, table_grad, bias_grad) = gradients(
        chunked_cross_entropy, arguments, vocabulary=vocabulary, chunk=16
    )
    alone = exact((hidden, table[:vocabulary], bias[:vocabulary], labels), vocabulary)
    np.testing.assert_allclose(result.loss, alone[0].loss, rtol=1e-5, atol=1e-6)
    assert (np.asarray(table_grad[vocabulary:]) == 0).all()
    assert (np.asarray(bias_grad[vocabulary:]) == 0).all()
    assert np.abs(table_grad[:vocabulary]).min() > 0


def test_halves_of_a_batch_add_up_to_it():
    hidden, table, bias, labels = inputs(10, 61, 61)
    whole = exact((hidden, table, bias, labels), 61)
    parts = [
        gradients(
            chunked_cross_entropy,
            (hidden[part], table, bias, labels[part]),
            vocabulary=61,
            chunk=16,
        )
        for part in (slice(0, 1), slice(1, 10))
    ]
    np.testing.assert_allclose(
        np.concatenate([part[0].loss for part in parts]), whole[0].loss, rtol=1e-5, atol=1e-6
    )
    for one, two, both in zip(parts[0][1][1:], parts[1][1][1:], whole[1][1:], strict=True):
        np.testing.assert_allclose(one + two, both, rtol=1e-4, atol=1e-5)


def test_a_label_that_is_no_token_gives_an_infinite_loss():
    hidden, table, bias, _ = inputs(5, 64, 50)
    labels = jnp.array([0, -1, 50, 63, 64])
    for loss in (full_cross_entropy, chunked_cross_entropy):
        result = loss(hidden, table, bias, labels, vocabulary=50)
        np.testing.assert_array_equal(np.isinf(result.loss), [False, True, True, True, True])
        assert not result.correct[1:].any()


def test_correct_is_the_argmax():
    hidden, table, bias, _ = inputs(40, 64, 50, scale=3.0)
    best = (hidden @ table.T + bias)[:, :50].argmax(axis=1)
    labels = jnp.where(jnp.arange(40) % 2 == 0, best, (best + 1) % 50)
    result = chunked_cross_entropy(hidden, table, bias, labels, vocabulary=50, chunk=16)
    np.testing.assert_array_equal(result.correct, np.arange(40) % 2 == 0)


def test_logits_and_labels():
    logits = jnp.array([[0.0, 0.0], [0.0, np.log(3.0)], [-jnp.inf, 5.0]])
    result = cross_entropy(logits, jnp.array([0, 0, 1]))
    np.testing.assert_allclose(result.loss, [np.log(2), np.log(4), 0.0], rtol=1e-6)
    np.testing.assert_array_equal(result.correct, [True, False, True])
    rounded = cross_entropy(logits.astype(jnp.bfloat16), jnp.array([0, 0, 1]))
    assert rounded.loss.dtype == jnp.float32


@given(st.integers(1, 3000), st.integers(1, 3000))
def test_chunks_cover_every_column_once(columns, chunk):
    chunks = _Chunks.plan(columns, chunk)
    assert chunks.width <= chunk
    assert (chunks.count - 1) * chunks.width < columns <= chunks.count * chunks.width
    assert not chunks.strided or columns == chunks.count * chunks.width


@pytest.mark.parametrize(("columns", "expected"), [(30522, False), (30592, True), (50304, True)])
def test_padded_vocabularies_are_strided_over_eight_devices(columns, expected):
    chunks = _Chunks.plan(columns, 4096)
    assert (chunks.strided and chunks.width % 8 == 0) == expected


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"vocabulary": 0}, "from 1 to 64"),
        ({"vocabulary": 65}, "from 1 to 64"),
        ({"vocabulary": 64, "chunk": 0}, "at least 1 column"),
    ],
)
def test_bad_numbers_are_named(options, message):
    with pytest.raises(UserError, match=message):
        chunked_cross_entropy(*inputs(2, 64, 64), **options)


def collectives(text):
    """(operation, shape) of each collective in a compiled program."""
    pattern = r"= (.*?) (all-gather|all-to-all|all-reduce|collective-permute)(?:-start)?\("
    return [(found[1], found[0]) for found in re.findall(pattern, text)]


def sizes(shape):
    """The numbers of a shape such as f32[32,24]{1,0}."""
    return [int(size) for size in re.search(r"\[([\d,]*)\]", shape)[1].split(",") if size]


@pytest.mark.parametrize(
    ("table_spec", "shares_rows"),
    [
        (PartitionSpec("tensor", None), False),
        (PartitionSpec(("data", "tensor"), None), False),
        (PartitionSpec("tensor", "data"), True),
        (PartitionSpec(None, None), False),
    ],
)
def test_eight_devices_agree_with_one_and_never_gather_the_table(table_spec, shares_rows):
    columns, vocabulary, width = 1024, 1000, 24
    arguments = inputs(32, columns, vocabulary, width=width)
    alone = exact(arguments, vocabulary)

    mesh = jax.make_mesh((2, 4), ("data", "tensor"), axis_types=(AxisType.Auto,) * 2)
    rows, bias_spec = PartitionSpec("data"), PartitionSpec(table_spec[0])
    shardings = [NamedSharding(mesh, spec) for spec in (rows, table_spec, bias_spec, rows)]

    def total(hidden, table, bias, labels):
        result = chunked_cross_entropy(
            hidden, table, bias, labels, vocabulary=vocabulary, chunk=128
        )
        return result.loss.sum(), result

    step = jax.jit(
        jax.value_and_grad(total, (0, 1, 2), has_aux=True),
        out_shardings=((None, None), tuple(shardings[:3])),
    )
    placed = [jax.device_put(*pair) for pair in zip(arguments, shardings, strict=True)]
    compiled = step.lower(*placed).compile()
    (_, result), grads = compiled(*placed)
    assert_same((result, grads), alone, 2e-5)

    gathered = [
        shape
        for operation, shape in collectives(compiled.as_text())
        if operation in ("all-gather", "all-to-all")
    ]
    # Where devices share out the table's second axis, they put one chunk's rows together.
    assert len(gathered) > 0 or not shares_rows
    largest = max((math.prod(sizes(shape)) for shape in gathered), default=0)
    assert largest <= 128 * width


def test_memory_is_far_below_that_of_the_logits():
    tokens, columns = 64, 8192

    def temporaries(loss, **options):
        arguments = inputs(tokens, columns, columns, width=16)

        def total(*arrays):
            return loss(*arrays, vocabulary=columns, **options).loss.sum()

        compiled = jax.jit(jax.value_and_grad(total, (0, 1, 2))).lower(*arguments).compile()
        return compiled.memory_analysis().temp_size_in_bytes

    logits = tokens * columns * 4
    assert temporaries(full_cross_entropy) >= logits
    assert temporaries(chunked_cross_entropy, chunk=512) < logits / 4
