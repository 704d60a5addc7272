"""What a compiled program moves, read from its text: by hand, and from programs that are compiled here."""

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from mlmjax.planning.chips import Topology
from mlmjax.planning.plan import devices
from mlmjax.planning.traffic import Traffic, traffic

LOOP = """
HloModule jit_f, entry_computation_layout={(f32[4,8]{1,0})->f32[4,8]{1,0}}

%sum (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %add.1 = f32[] add(%a, %b)
}

%sliced (p.0: f32[12,4,8], p.1: s32[]) -> f32[4,8] {
  %p.0 = f32[12,4,8]{2,1,0} parameter(0)
  %p.1 = s32[] parameter(1)
  %zero = s32[] constant(0)
  %slice = f32[1,4,8]{2,1,0} dynamic-slice(%p.0, %p.1, %zero, %zero), dynamic_slice_sizes={1,4,8}
  ROOT %reshaped = f32[4,8]{1,0} bitcast(%slice)
}

%written (q.0: f32[12,4,8], q.1: f32[4,8], q.2: s32[]) -> f32[12,4,8] {
  %q.0 = f32[12,4,8]{2,1,0} parameter(0)
  %q.1 = f32[4,8]{1,0} parameter(1)
  %q.2 = s32[] parameter(2)
  %zero.1 = s32[] constant(0)
  %one = f32[1,4,8]{2,1,0} bitcast(%q.1)
  ROOT %put = f32[12,4,8]{2,1,0} dynamic-update-slice(%q.0, %one, %q.2, %zero.1, %zero.1)
}

%body (state: (s32[], f32[12,4,8], f32[12,4,8])) -> (s32[], f32[12,4,8], f32[12,4,8]) {
  %state = (s32[], f32[12,4,8]{2,1,0}, f32[12,4,8]{2,1,0}) parameter(0)
  %turn = s32[] get-tuple-element(%state), index=0
  %read = f32[12,4,8]{2,1,0} get-tuple-element(%state), index=1
  %stack = f32[12,4,8]{2,1,0} get-tuple-element(%state), index=2
  %row = f32[4,8]{1,0} fusion(%read, %turn), kind=kLoop, calls=%sliced
  %reduced = f32[4,8]{1,0} all-reduce(%row), replica_groups={{0,1,2,3},{4,5,6,7}}, to_apply=%sum
  %whole = f32[12,4,8]{2,1,0} fusion(%stack, %reduced, %turn), kind=kLoop, calls=%written
  ROOT %next = (s32[], f32[12,4,8]{2,1,0}, f32[12,4,8]{2,1,0}) tuple(%turn, %read, %whole)
}

%condition (state.1: (s32[], f32[12,4,8], f32[12,4,8])) -> pred[] {
  %state.1 = (s32[], f32[12,4,8]{2,1,0}, f32[12,4,8]{2,1,0}) parameter(0)
  %counter = s32[] get-tuple-element(%state.1), index=0
  %bound = s32[] constant(12)
  ROOT %below = pred[] compare(%counter, %bound), direction=LT
}

ENTRY %main (x: f32[12,4,8], y: f32[12,4,8]) -> f32[12,4,8] {
  %x = f32[12,4,8]{2,1,0} parameter(0)
  %y = f32[12,4,8]{2,1,0} parameter(1)
  %start = s32[] constant(0)
  %begin = (s32[], f32[12,4,8]{2,1,0}, f32[12,4,8]{2,1,0}) tuple(%start, %x, %y)
  %loop = (s32[], f32[12,4,8]{2,1,0}, f32[12,4,8]{2,1,0}) while(%begin), condition=%condition, body=%body
  %fast = f32[12,4,8]{2,1,0:T(8,128)S(1)} copy(%x)
  ROOT %done = f32[12,4,8]{2,1,0} get-tuple-element(%loop), index=2
}
"""


def test_a_loop_counts_for_its_turns_and_slices_for_themselves() -> None:
    found = traffic(LOOP)
    row, whole, counter = 4 * 8 * 4, 12 * 4 * 8 * 4, 4
    assert found.unknown_loops == 0
    assert found.between["all-reduce"].count == 12
    assert found.between["all-reduce"].bytes == 12 * row
    assert found.sent == 12 * 2 * 3 / 4 * row
    cut, reduced, put = 2 * row + counter, 2 * row, row + row + counter
    # What is on the chip (S(1)) costs nothing to write.
    assert found.memory == 12 * (cut + reduced + put) + whole


def test_a_counter_that_grows_by_two_turns_half_as_often() -> None:
    """As where a compiler has put two turns into one."""
    text = LOOP.replace(
        "%turn = s32[] get-tuple-element(%state), index=0",
        "%turn = s32[] get-tuple-element(%state), index=0\n  %two = s32[] constant(2)\n"
        "  %later = s32[] add(%turn, %two)",
    ).replace("tuple(%turn, %read, %whole)", "tuple(%later, %read, %whole)")
    assert traffic(text).between["all-reduce"].count == 6


FUSED = """
HloModule jit_g, entry_computation_layout={(f32[4,8]{1,0})->f32[16,8]{1,0}}

%begun (shard: f32[4,8]) -> f32[16,8] {
  %shard = f32[4,8]{1,0} parameter(0)
  ROOT %gathered = f32[16,8]{1,0} all-gather(%shard), channel_id=7, replica_groups=[1,4]<=[4], dimensions={0}
}

%beside (shard.1: f32[4,8]) -> f32[16,8] {
  %shard.1 = f32[4,8]{1,0} parameter(0)
  ROOT %gathered.1 = f32[16,8]{1,0} all-gather(%shard.1), channel_id=7, replica_groups=[1,4]<=[4], dimensions={0}
}

%other (shard.2: f32[4,8]) -> f32[16,8] {
  %shard.2 = f32[4,8]{1,0} parameter(0)
  ROOT %gathered.2 = f32[16,8]{1,0} all-gather(%shard.2), channel_id=8, replica_groups=[1,4]<=[4], dimensions={0}
}

ENTRY %main (x: f32[4,8]) -> f32[16,8] {
  %x = f32[4,8]{1,0} parameter(0)
  %first = f32[16,8]{1,0} fusion(%x), kind=kCustom, calls=%begun
  %second = f32[16,8]{1,0} fusion(%x), kind=kCustom, calls=%beside
  ROOT %third = f32[16,8]{1,0} fusion(%x), kind=kCustom, calls=%other
}
"""


def test_what_is_gathered_within_fusions_counts_once_a_channel() -> None:
    gathered = traffic(FUSED).between["all-gather"]
    assert (gathered.count, gathered.bytes, gathered.sent) == (2, 2 * 128, 2 * 3 * 128)


CARRIED = """
HloModule jit_h, entry_computation_layout={(f32[4,8]{1,0}, f32[32]{0})->f32[16,8]{1,0}}

%begun (shard: f32[4,8]) -> (f32[4,8], f32[16,8]) {
  %shard = f32[4,8]{1,0} parameter(0)
  %whole = f32[16,8]{1,0} all-gather(%shard), channel_id=7, replica_groups=[1,4]<=[4], frontend_attributes={chain_id="0"}
  ROOT %start = (f32[4,8]{1,0}, f32[16,8]{1,0}) custom-call(%whole), custom_call_target="AsyncCollectiveStart"
}

%beside (row: f32[32], shard.1: f32[4,8], buffer.1: f32[16,8]) -> (f32[32], f32[4,8], f32[16,8]) {
  %row = f32[32]{0} parameter(0)
  %shard.1 = f32[4,8]{1,0} parameter(1)
  %buffer.1 = f32[16,8]{1,0} parameter(2)
  %twice = f32[32]{0} add(%row, %row)
  %whole.1 = f32[16,8]{1,0} all-gather(%shard.1), channel_id=7, replica_groups=[1,4]<=[4], frontend_attributes={chain_id="0"}
  ROOT %all = (f32[32]{0}, f32[4,8]{1,0}, f32[16,8]{1,0}) tuple(%twice, %shard.1, %whole.1)
}

%over (shard.2: f32[4,8], buffer.2: f32[16,8]) -> f32[16,8] {
  %shard.2 = f32[4,8]{1,0} parameter(0)
  %buffer.2 = f32[16,8]{1,0} parameter(1)
  %whole.2 = f32[16,8]{1,0} all-gather(%shard.2), channel_id=7, replica_groups=[1,4]<=[4], frontend_attributes={chain_id="0"}
  ROOT %done = f32[16,8]{1,0} custom-call(%shard.2, %buffer.2, %whole.2), custom_call_target="AsyncCollectiveDone"
}

ENTRY %main (x: f32[4,8], y: f32[32]) -> f32[16,8] {
  %x = f32[4,8]{1,0} parameter(0)
  %y = f32[32]{0} parameter(1)
  %first = (f32[4,8]{1,0}, f32[16,8]{1,0}) fusion(%x), kind=kCustom, calls=%begun
  %held = f32[4,8]{1,0} get-tuple-element(%first), index=0
  %filled = f32[16,8]{1,0} get-tuple-element(%first), index=1
  %second = (f32[32]{0}, f32[4,8]{1,0}, f32[16,8]{1,0}) fusion(%y, %held, %filled), kind=kCustom, calls=%beside
  %held.1 = f32[4,8]{1,0} get-tuple-element(%second), index=1
  %filled.1 = f32[16,8]{1,0} get-tuple-element(%second), index=2
  ROOT %third = f32[16,8]{1,0} fusion(%held.1, %filled.1), kind=kCustom, calls=%over
}
"""  # noqa: E501


def test_what_a_fusion_carries_on_is_moved_once() -> None:
    found = traffic(CARRIED)
    assert (found.between["all-gather"].count, found.between["all-gather"].sent) == (1, 3 * 128)
    begun, beside = 128 + 512, 128 + 128
    assert found.memory == begun + beside


SLICED = """
HloModule jit_s, entry_computation_layout={(f32[16,8]{1,0})->f32[4,8]{1,0}}

%sliced (whole: f32[16,8]) -> f32[4,8] {
  %whole = f32[16,8]{1,0} parameter(0)
  %added = f32[16,8]{1,0} all-reduce(%whole), channel_id=7, replica_groups=[1,4]<=[4], to_apply=%add
  %mine = u32[] partition-id()
  %zero = u32[] constant(0)
  ROOT %part = f32[4,8]{1,0} dynamic-slice(%added, %mine, %zero), dynamic_slice_sizes={4,8}
}

ENTRY %main (x: f32[16,8]) -> f32[4,8] {
  %x = f32[16,8]{1,0} parameter(0)
  ROOT %only = f32[4,8]{1,0} fusion(%x), kind=kCustom, calls=%sliced
}
"""


def test_a_sum_of_which_each_keeps_a_part_sends_half() -> None:
    found = traffic(SLICED)
    assert list(found.between) == ["reduce-scatter"]
    assert found.sent == 512 * 3 / 4
    assert found.memory == 512 + 128


def test_a_started_operation_moves_its_operands_once() -> None:
    text = """
ENTRY %main (x: f32[4,8]) -> f32[16,8] {
  %x = f32[4,8]{1,0} parameter(0)
  %begun = (f32[4,8]{1,0}, f32[16,8]{1,0}) all-gather-start(%x), channel_id=1, replica_groups=[1,4]<=[4]
  ROOT %done = f32[16,8]{1,0} all-gather-done(%begun)
}
"""
    found = traffic(text)
    assert (found.memory, found.sent) == (128 + 512, 3 * 128)


def test_on_a_tpu_weights_are_gathered_twice_and_gradients_added_up_once() -> None:
    """A scan over feed-forward layers whose kernels lie on four chips, made again on the way back: in a ring each
    chip sends (n - 1)/n of the kernels for each of the two gatherings, and as much for the sum of gradients."""
    pytest.importorskip("libtpu")
    layers, width, rows = 3, 256, 2048
    chips = devices(Topology.parse("v5e:2x2"))
    mesh = jax.make_mesh((4,), ("fsdp",), axis_types=(AxisType.Auto,), devices=chips)

    def on(*axes: str | None) -> NamedSharding:
        return NamedSharding(mesh, PartitionSpec(*axes))

    def given(shape: tuple[int, ...], dtype: object, *axes: str | None) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape, dtype, sharding=on(*axes))

    kernels = (
        given((layers, width, 4 * width), jnp.float32, None, "fsdp", None),
        given((layers, 4 * width, width), jnp.float32, None, "fsdp", None),
    )
    states = given((rows, width), jnp.bfloat16, "fsdp", None)

    def layer(states: jax.Array, kernels: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, None]:
        up, down = (
            jax.lax.with_sharding_constraint(each.astype(jnp.bfloat16), on()) for each in kernels
        )
        states += jax.nn.gelu(states @ up) @ down
        return jax.lax.with_sharding_constraint(states, on("fsdp", None)), None

    def loss(kernels: tuple[jax.Array, jax.Array], states: jax.Array) -> jax.Array:
        states, _ = jax.lax.scan(jax.checkpoint(layer), states, kernels)
        return (states.astype(jnp.float32) ** 2).mean()

    shardings = jax.tree.map(lambda each: each.sharding, kernels)
    gradient = jax.jit(jax.grad(loss), out_shardings=shardings)
    found = traffic(gradient.lower(kernels, states).compile().as_text())
    once = 2 * layers * 2 * (width * 4 * width) * 3 / 4
    assert {kind: moved.sent / once for kind, moved in found.between.items()} == {
        "all-gather": 2.0,
        "reduce-scatter": 1.0,
    }


def test_a_loop_without_a_known_end_is_told() -> None:
    found = traffic(LOOP.replace("constant(12)", "add(%counter, %counter)"))
    assert found.unknown_loops == 1
    assert found.between["all-reduce"].count == 1


@pytest.mark.parametrize(
    ("groups", "devices"),
    [
        ("{{0,1},{2,3}}", 2),
        ("[2,4]<=[8]", 4),
        ("[4,2]<=[2,4]T(1,0)", 2),
        ("mesh['a'=4,'b'=2] {'a'}", 4),
        ("mesh['a'=4,'b'=2] {'a','b'}", 8),
    ],
)
def test_groups_of_devices_in_all_notations(groups: str, devices: int) -> None:
    found = traffic(LOOP.replace("{{0,1,2,3},{4,5,6,7}}", groups))
    assert found.sent == pytest.approx(12 * 2 * (devices - 1) / devices * 4 * 8 * 4)


def test_an_operation_of_one_device_with_itself_is_none() -> None:
    assert not traffic(LOOP.replace("{{0,1,2,3},{4,5,6,7}}", "{{0},{1}}")).between


def compiled(function: object, *arguments: jax.Array) -> Traffic:
    return traffic(jax.jit(function).lower(*arguments).compile().as_text())


def test_a_product_over_eight_devices_is_added_up_once() -> None:
    mesh = jax.make_mesh((8,), ("x",), axis_types=(AxisType.Auto,))
    left = jax.device_put(jnp.ones((4, 64)), NamedSharding(mesh, PartitionSpec(None, "x")))
    right = jax.device_put(jnp.ones((64, 6)), NamedSharding(mesh, PartitionSpec("x", None)))
    found = compiled(jnp.matmul, left, right)
    assert found.between["all-reduce"].count == 1
    assert found.between["all-reduce"].bytes == 4 * 6 * 4
    assert found.memory >= (4 * 8 + 8 * 6 + 4 * 6) * 4


def test_a_compiled_scan_counts_for_its_length() -> None:
    mesh = jax.make_mesh((8,), ("x",), axis_types=(AxisType.Auto,))
    kernels = jax.device_put(
        jnp.ones((5, 64, 64)), NamedSharding(mesh, PartitionSpec(None, "x", None))
    )
    rows = jax.device_put(jnp.ones((8, 64)), NamedSharding(mesh, PartitionSpec("x", None)))

    def scanned(rows: jax.Array, kernels: jax.Array) -> jax.Array:
        return jax.lax.scan(lambda rows, kernel: (rows @ kernel, None), rows, kernels)[0]

    found = compiled(scanned, rows, kernels)
    assert sum(each.count for each in found.between.values()) % 5 == 0
    assert found.sent > 0
