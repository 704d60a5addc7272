"""Attention without the whole score matrix is the attention that has it, on every platform."""

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from hypothesis import given
from hypothesis import strategies as st
from jax.extend.core import ClosedJaxpr
from jax.sharding import AbstractDevice, AbstractMesh, AxisType
from jaxtyping import Array

from mlmjax.core.axes import per_shard
from mlmjax.core.errors import UserError
from mlmjax.nn.attention import Visibility, attention
from mlmjax.nn.blockwise import LONGEST, block_length, blockwise_attention
from mlmjax.nn.splash import splash_attention
from mlmjax.nn.transformer import Transformer, TransformerConfig
from mlmjax.planning.products import equations, product_flops
from mlmjax.sharding import MeshConfig, replicated

KEY = jax.random.key(0)
Function = Callable[[Array, Array, Array, Visibility], Array]


def plain(query: Array, keys: Array, value: Array, visibility: Visibility) -> Array:
    return attention(query, keys, value, visibility, implementation="xla")


def blockwise(
    query: Array, keys: Array, value: Array, visibility: Visibility, *, block: int
) -> Array:
    return blockwise_attention(query, keys, value, visibility.segments(), block=block)


def interpreted(query: Array, keys: Array, value: Array, visibility: Visibility) -> Array:
    return splash_attention(query, keys, value, visibility.segments(), interpret=True)


@partial(jax.jit, static_argnums=0)
def with_gradients(
    function: Function, arrays: tuple[Array, Array, Array], upstream: Array, visibility: Visibility
) -> tuple[Array, ...]:
    """Output and gradients of query, keys and value; what padding sees counts for nothing."""
    counts = jnp.ones(upstream.shape[:2], bool) if visibility.valid is None else visibility.valid
    counts = counts[..., None, None]
    output, backward = jax.vjp(lambda *arrays: function(*arrays, visibility), *arrays)
    return jnp.where(counts, output, 0), *backward(jnp.where(counts, upstream, 0))


def inputs(
    batch: int, length: int, *, heads: int = 2, size: int = 5
) -> tuple[tuple[Array, Array, Array], Array]:
    query, keys, value, upstream = jax.random.normal(KEY, (4, batch, length, heads, size))
    return (query, keys, value), upstream


def packed(ends: list[list[int]], tokens: list[int], length: int) -> Visibility:
    """Rows whose documents end at these places, and whose tokens end at those."""
    places = jnp.arange(length)
    documents = jnp.stack([(places[:, None] >= jnp.array([0, *row])).sum(1) for row in ends])
    return Visibility(places[None] < jnp.array(tokens)[:, None], documents.astype(jnp.int32))


LENGTHS = {length: partial(blockwise, block=4) for length in (1, 8, 10)}


def assert_equal(
    function: Function, arrays: tuple[Array, Array, Array], upstream: Array, visibility: Visibility
) -> None:
    """Output and gradients are those of the plain path."""
    found = with_gradients(function, arrays, upstream, visibility)
    wanted = with_gradients(plain, arrays, upstream, visibility)
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_allclose(one, other, atol=3e-6)


@given(length=st.sampled_from(sorted(LENGTHS)), data=st.data())
def test_attention_in_blocks_and_its_gradients_are_attention(
    length: int, data: st.DataObject
) -> None:
    """Also where the block does not divide the length, and in rows without a token."""
    place = st.integers(0, length)
    ends = st.lists(place, min_size=2, max_size=2).map(sorted)
    documents = data.draw(st.tuples(ends, ends).map(list))
    tokens = data.draw(st.lists(place | st.just(length), min_size=2, max_size=2))
    assert_equal(LENGTHS[length], *inputs(2, length), packed(documents, tokens, length))


@pytest.mark.parametrize("kind", ["none", "padding", "documents"])
@pytest.mark.parametrize("length", [8, 10])
def test_where_a_row_is_one_text_or_full_it_is_too(kind: str, length: int) -> None:
    both = packed([[3, 7], [2, 2]], [length, 5], length)
    visibility = {
        "none": Visibility(),
        "padding": Visibility(both.valid),
        "documents": Visibility(documents=both.documents),
    }[kind]
    assert_equal(LENGTHS[length], *inputs(2, length), visibility)


BOTH = packed([[37, 110], [90, 90]], [200, 128], 200)


def test_in_bfloat16_the_blocks_are_as_near_as_rounding_allows() -> None:
    arrays, upstream = inputs(2, 200)
    wanted = with_gradients(plain, arrays, upstream, BOTH)
    halves = tuple(each.astype(jnp.bfloat16) for each in arrays)
    function = partial(blockwise, block=64)
    found = with_gradients(function, halves, upstream.astype(jnp.bfloat16), BOTH)
    for one, other in zip(found, wanted, strict=True):
        assert one.dtype == jnp.bfloat16
        np.testing.assert_allclose(one.astype(jnp.float32), other, atol=0.05)
        assert float(abs(one - other).mean()) < 0.004


@pytest.mark.parametrize("name", ["blockwise", "splash"])
def test_rows_of_padding_alone_stay_finite(name: str) -> None:
    """As in the last batch; also where a gradient comes back to them."""
    function = partial(blockwise, block=4) if name == "blockwise" else interpreted
    arrays, upstream = inputs(2, 6)
    visibility = Visibility(jnp.array([[True] * 6, [False] * 6]))

    @jax.jit
    def run() -> tuple[Array, tuple[Array, ...]]:
        output, backward = jax.vjp(lambda *arrays: function(*arrays, visibility), *arrays)
        return output, backward(upstream)

    assert all(np.isfinite(each).all() for each in jax.tree.leaves(run()))


def test_the_kernel_for_tpus_is_attention_on_a_mesh_too() -> None:
    """Interpreted, on 2 x 2 x 2 devices, with documents and padding; a row is no multiple of its blocks."""
    mesh = MeshConfig(data=2, fsdp=2, tensor=2).make()
    arrays, upstream = inputs(4, 200)
    visibility = jax.tree.map(lambda each: jnp.concatenate([each, each[::-1]]), BOTH)
    places = ("batch", None, "heads", None)

    def on_mesh(*arguments: Array | Visibility) -> Array:
        with jax.sharding.use_abstract_mesh(mesh.abstract_mesh):
            shapes = (places, places, places, ("batch",))
            return per_shard(interpreted, inputs=shapes, output=places)(*arguments)

    arrays, upstream, visibility = jax.device_put((arrays, upstream, visibility), replicated(mesh))
    assert_equal(on_mesh, arrays, upstream, visibility)


@pytest.mark.parametrize("length", [1, 127, LONGEST, LONGEST + 1, 5000, 8192])
@pytest.mark.parametrize("multiple", [1, 128])
def test_blocks_are_few_and_pad_little(length: int, multiple: int) -> None:
    block = block_length(length, multiple=multiple)
    count = -(-length // block)
    assert block <= LONGEST
    assert block % multiple == 0
    assert count == -(-length // LONGEST)
    assert count * block - length < count * multiple


SIZES = {"layers": 2, "hidden": 16, "heads": 2, "mlp": 32, "attention_dropout": 0.0}


def gradient_of(
    length: int, *, valid: bool = True, **changes: object
) -> tuple[Callable[[nnx.State, Array], nnx.State], nnx.State, Array]:
    """The gradient of a stack of blocks, and what it takes."""
    model = nnx.eval_shape(
        lambda: Transformer(TransformerConfig(**{**SIZES, **changes}), rngs=nnx.Rngs(params=0))
    )
    graph, parameters = nnx.split(model)
    documents = jnp.arange(length)[None] // 100

    def loss(parameters: nnx.State, hidden: Array) -> Array:
        visibility = Visibility(documents < length // 200, documents) if valid else Visibility()
        output = nnx.merge(graph, parameters)(hidden, visibility).hidden
        return (output.astype(jnp.float32) ** 2).sum()

    return jax.grad(loss), parameters, jax.ShapeDtypeStruct((1, length, 16), jnp.float32)


def squares(traced: ClosedJaxpr, length: int) -> int:
    """Arrays that hold a number for each pair of positions."""
    arrays = [each.aval for equation, _ in equations(traced.jaxpr) for each in equation.outvars]
    return sum(sum(side >= length for side in each.shape) > 1 for each in arrays)


def test_at_length_8192_no_array_has_a_number_for_each_pair() -> None:
    for implementation, found in (("blockwise", 0), ("flash", 0), ("xla", 1)):
        function, *arguments = gradient_of(8192, attention=implementation)
        counted = squares(jax.make_jaxpr(function)(*arguments), 8192)
        assert min(counted, 1) == found


def one_of(device: AbstractDevice | None) -> AbstractMesh:
    """A mesh of one device, whose axes are the partitioner's, as those of every mesh of the package."""
    axes = ("data", "fsdp", "tensor")
    kinds = (AxisType.Auto,) * len(axes)
    return AbstractMesh((1, 1, 1), axes, axis_types=kinds, abstract_device=device)


def traced_for(place: str | None, implementation: str, **changes: object) -> ClosedJaxpr:
    """The gradient's program, as traced for a mesh of one device of a platform."""
    device = None if place is None else AbstractDevice("some", num_cores=1, platform=place)
    mesh = one_of(device)
    function, *arguments = gradient_of(128, attention=implementation, **changes)
    with jax.sharding.use_abstract_mesh(mesh):
        return jax.make_jaxpr(function)(*arguments)


@pytest.mark.parametrize(("place", "implementation"), [("cpu", "blockwise"), ("tpu", "splash")])
def test_attention_is_not_computed_again_with_the_products(place: str, implementation: str) -> None:
    """The policy ``dots`` keeps its output; ``full`` keeps nothing."""
    none, dots, full = (
        product_flops(traced_for(place, implementation, remat=policy))
        for policy in ("none", "dots", "full")
    )
    # Nothing but what a sum over the width of a head, written as a product, computes again.
    assert dots == pytest.approx(none, rel=0.002)
    assert full > 1.2 * none


@pytest.mark.parametrize("valid", [True, False])
def test_flash_is_the_kernel_of_the_platform_that_is_compiled_for(valid: bool) -> None:
    assert "pallas_call" in str(traced_for("tpu", "flash", valid=valid))
    for place, implementation in (
        ("cpu", "flash"),
        ("gpu", "flash"),  # in float32 there is none for GPUs
        (None, "splash"),  # what is only counted needs no platform
    ):
        assert "pallas_call" not in str(traced_for(place, implementation, valid=valid))


@pytest.mark.parametrize(
    ("place", "implementation", "sentence"),
    [
        ("cpu", "splash", "'splash' is a kernel for TPUs, and this program is for a CPU.*'flash'"),
        ("gpu", "splash", "for TPUs, and this program is for a GPU"),
        ("tpu", "cudnn", "'cudnn' is a kernel for GPUs, and this program is for a TPU"),
    ],
)
def test_a_kernel_of_another_platform_is_refused(
    place: str, implementation: str, sentence: str
) -> None:
    with pytest.raises(UserError, match=sentence):
        traced_for(place, implementation, dtype="bfloat16")


class TestCudnn:
    """No GPU is here: what cuDNN is asked for is lowered, and computed by jax's own attention."""

    @pytest.mark.parametrize("kind", ["none", "padding", "documents"])
    def test_it_is_asked_for_without_a_mask_where_rows_are_one_text(
        self, kind: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(
            "jax._src.cudnn.fused_attention_stablehlo.check_cudnn_version", lambda: 91000
        )
        visibility = {"none": Visibility(), "padding": Visibility(BOTH.valid), "documents": BOTH}[
            kind
        ]
        device = AbstractDevice("some", num_cores=1, platform="gpu")
        mesh = one_of(device)

        def loss(*arrays: Array) -> Array:
            with jax.sharding.use_abstract_mesh(mesh):
                return attention(*arrays, visibility, implementation="cudnn").sum()

        shapes = [jax.ShapeDtypeStruct((2, 200, 2, 8), jnp.bfloat16)] * 3
        traced = jax.jit(jax.grad(loss, argnums=(0, 1, 2))).trace(*shapes)
        text = traced.lower(lowering_platforms=("cuda",)).as_text()
        assert "__cudnn$fmha" in text
        assert "Backward" in text
        assert ("200x200" in text) == (kind == "documents")
        assert ("PADDING" in text) == (kind == "padding")

    @pytest.mark.parametrize("kind", ["padding", "documents"])
    def test_what_it_is_asked_for_is_the_visibility(
        self, kind: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        computed = jax.nn.dot_product_attention
        monkeypatch.setattr(
            jax.nn,
            "dot_product_attention",
            lambda *arrays, implementation, **given: computed(*arrays, **given),
        )
        visibility = Visibility(BOTH.valid) if kind == "padding" else BOTH
        arrays, upstream = inputs(2, 200)
        device = AbstractDevice("some", num_cores=1, platform="gpu")

        mesh = MeshConfig(data=2, tensor=2).make(jax.devices()[:4])

        def asked(*arguments: Array | Visibility) -> Array:
            with jax.sharding.use_abstract_mesh(mesh.abstract_mesh.update(abstract_device=device)):
                return attention(*arguments, implementation="cudnn")

        assert_equal(asked, *jax.device_put((arrays, upstream, visibility), replicated(mesh)))
