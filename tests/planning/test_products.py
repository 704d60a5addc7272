"""Products are counted as often as they are run: against formulas, and against XLA where nothing is in a loop."""

import jax
import jax.numpy as jnp
import pytest

from mlmjax.core.axes import per_shard
from mlmjax.data.images import ImageData
from mlmjax.experiment import Experiment, RunConfig
from mlmjax.models.bert import BertConfig
from mlmjax.models.mae import DecoderConfig, MaeConfig
from mlmjax.models.vit import VitConfig
from mlmjax.nn.splash import splash_attention
from mlmjax.objectives.mae import MaskedAutoencoder
from mlmjax.optim import AdamW, WarmupSchedule
from mlmjax.planning.products import product_flops, stacked_bytes
from mlmjax.sharding import MeshConfig
from mlmjax.training.step import Program


def test_a_scan_counts_as_often_as_it_is_long() -> None:
    kernels = jnp.ones((7, 8, 8))

    def scanned(rows: jax.Array) -> jax.Array:
        return jax.lax.scan(lambda rows, kernel: (rows @ kernel, rows), rows, kernels)[0]

    def unrolled(rows: jax.Array) -> jax.Array:
        for kernel in kernels:
            rows = rows @ kernel
        return rows

    rows = jnp.ones((3, 8))
    wanted = 7 * 2 * 3 * 8 * 8
    assert product_flops(jax.make_jaxpr(scanned)(rows)) == wanted
    assert product_flops(jax.make_jaxpr(unrolled)(rows)) == wanted
    assert product_flops(jax.make_jaxpr(jax.vmap(scanned))(rows[None])) == wanted
    assert stacked_bytes(jax.make_jaxpr(scanned)(rows)) == 7 * 3 * 8 * 4
    assert jax.jit(unrolled).lower(rows).compile().cost_analysis()["flops"] == wanted


def test_branches_convolutions_and_loops_within_loops() -> None:
    def branches(rows: jax.Array) -> jax.Array:
        return jax.lax.cond(rows[0, 0] > 0, lambda x: x @ x @ x, lambda x: x @ x, rows)

    def nested(rows: jax.Array) -> jax.Array:
        def outer(rows: jax.Array, _: None) -> tuple[jax.Array, None]:
            return jax.lax.scan(lambda rows, _: (rows @ rows, None), rows, None, length=3)[0], None

        return jax.lax.scan(outer, rows, None, length=5)[0]

    def convolution(image: jax.Array) -> jax.Array:
        return jax.lax.conv(image, jnp.ones((6, 2, 3, 3)), (1, 1), "VALID")

    rows = jnp.ones((4, 4))
    assert product_flops(jax.make_jaxpr(branches)(rows)) == 2 * 2 * 4**3
    assert product_flops(jax.make_jaxpr(nested)(rows)) == 15 * 2 * 4**3
    image = jnp.ones((1, 2, 10, 10))
    assert product_flops(jax.make_jaxpr(convolution)(image)) == 2 * 6 * 8 * 8 * 2 * 9


def test_a_scan_within_a_scan_stacks_in_the_same_place_at_each_turn() -> None:
    rows = jnp.ones((3, 8))

    def stacked(rows: jax.Array, length: int) -> jax.Array:
        return jax.lax.scan(lambda rows, _: (rows + 1, rows), rows, None, length=length)[1]

    def nested(rows: jax.Array) -> jax.Array:
        return jax.lax.scan(lambda rows, _: (stacked(rows, 5).sum(0), None), rows, None, length=7)[
            0
        ]

    assert stacked_bytes(jax.make_jaxpr(nested)(rows)) == 5 * rows.size * 4


def test_a_kernel_counts_for_its_grid_and_for_each_device() -> None:
    """Two products forward, three for the queries' gradient, four for the others, over rows of whole blocks."""
    mesh = MeshConfig(data=2, tensor=2).make(jax.devices()[:4])
    places = ("batch", None, "heads", None)

    def loss(*arrays: jax.Array) -> jax.Array:
        with jax.sharding.use_abstract_mesh(mesh.abstract_mesh):
            run = per_shard(splash_attention, inputs=(places,) * 3, output=places)
            return run(*arrays).sum()

    shapes = [jax.ShapeDtypeStruct((4, 1000, 6, 16), jnp.float32)] * 3
    product = 2 * 4 * 6 * 1024**2 * 16
    assert product_flops(jax.make_jaxpr(loss)(*shapes)) == 2 * product
    gradient = jax.grad(loss, argnums=(0, 1, 2))
    found = product_flops(jax.make_jaxpr(gradient)(*shapes))
    assert found == pytest.approx(9 * product, rel=2e-3)


@pytest.mark.parametrize("remat", ["none", "full"])
def test_bert_s_step_is_the_textbook_s(experiment: Experiment, remat: str) -> None:
    """Without recomputation the products are those of the formula, three times the forward pass."""
    sizes = {
        "layers": 3,
        "hidden": 64,
        "heads": 4,
        "mlp": 256,
        "positions": 32,
        "vocabulary_multiple": 8,
    }
    dropout = {"dropout": 0.0, "attention_dropout": 0.0}
    changed = experiment.updated(model=BertConfig(**sizes, **dropout, remat=remat))
    fitted = changed.fitted(changed.data.abstract_vocabulary())
    program = Program.of(fitted)
    found = product_flops(program.step().trace(program.state, program.batch).jaxpr)
    wanted = program.work.flops
    if remat == "none":
        # The head's products run in chunks, forward, and twice for the gradient that recomputes them.
        assert wanted * 0.98 < found < wanted * 1.2
    else:
        assert wanted * 1.2 < found < wanted * 1.45


def test_a_masked_autoencoder_s_step_is_the_textbook_s() -> None:
    sizes = {"layers": 2, "hidden": 32, "heads": 2, "mlp": 64, "remat": "none"}
    fitted = Experiment(
        model=MaeConfig(
            encoder=VitConfig(image=(32, 32), patch=(4, 4), **sizes), decoder=DecoderConfig(**sizes)
        ),
        objective=MaskedAutoencoder(),
        data=ImageData(size=(32, 32), batch=8),
        optimizer=AdamW(learning_rate=WarmupSchedule(peak=1e-3, warmup=1)),
        run=RunConfig(steps=3),
    ).fitted(None)
    program = Program.of(fitted)
    traced = program.step().trace(program.state, program.batch)
    assert product_flops(traced.jaxpr) == pytest.approx(program.work.flops, rel=0.02)
