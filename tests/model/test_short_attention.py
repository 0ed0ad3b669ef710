"""The kernels against the formula, interpreted on a CPU; and what they become for a GPU."""

import keras
import numpy as np
import pytest

if keras.backend.backend() != "jax":
    # Where JAX has started, no other test could fork.
    pytest.skip("runs in a process of its own: tests/test_jax_backend.py", allow_module_level=True)

import jax
import jax.numpy as jnp

from t2t_repro.model.short_attention import LONGEST, is_short, short_attention

# On a GPU Triton multiplies float32 as TF32, which has 10 bits after the point.
TOLERANCE = 0.02 if jax.default_backend() == "gpu" else 3e-6


def plain(query, key, value, mask):
    """Equation 1: query [b, q, h, d], key and value [b, k, h, d], mask [1 or b, 1 or q, k]."""
    logits = jnp.einsum("bqhd,bkhd->bhqk", query, key) / query.shape[-1] ** 0.5
    weights = jax.nn.softmax(jnp.where(mask[:, None] != 0, logits, -1e9))
    return jnp.einsum("bhqk,bkhd->bqhd", weights, value)


def drawn(queries, keys, dtype="float32"):
    rng = np.random.default_rng(0)
    return [jnp.array(rng.normal(size=(2, n, 3, 16)), dtype) for n in (queries, keys, keys)]


def padding(*lengths, keys):
    return np.array([np.arange(keys) < n for n in lengths])[:, None].astype("int8")


@pytest.mark.parametrize(
    ("queries", "mask"),
    [
        pytest.param(16, padding(16, 5, keys=16), id="whole blocks, padding"),
        pytest.param(20, padding(3, 1, keys=3), id="part of a block, padding"),
        pytest.param(7, np.tri(7, dtype="int8")[None], id="the future"),
        pytest.param(7, np.tri(7, dtype="int8") * padding(7, 4, keys=7), id="both"),
        pytest.param(5, padding(0, 9, keys=17), id="queries that may look nowhere"),
    ],
)
def test_output_and_gradients_are_those_of_the_formula(queries, mask):
    inputs = drawn(queries, mask.shape[-1])

    def output_and_gradients(attention):
        def total(*inputs):
            output = attention(*inputs, jnp.array(mask))
            return jnp.sum(jnp.sin(output)), output  # sin: each output has another gradient

        (_, output), gradients = jax.value_and_grad(total, (0, 1, 2), has_aux=True)(*inputs)
        return output, *gradients

    ours, expected = output_and_gradients(short_attention), output_and_gradients(plain)
    for one, other in zip(ours, expected, strict=True):
        assert (one.shape, one.dtype) == (other.shape, other.dtype)
        np.testing.assert_allclose(one, other, rtol=1e-6, atol=TOLERANCE)
        assert np.abs(other).max() > 0.1


def test_under_vmap_each_run_has_its_own_output():
    inputs, mask = drawn(7, 5), padding(5, 2, keys=5)
    runs = [jnp.stack([x, 2 * x]) for x in inputs]
    both = jax.vmap(lambda *x: short_attention(*x, mask))(*runs)
    np.testing.assert_allclose(both[0], plain(*inputs, mask), atol=TOLERANCE)
    np.testing.assert_allclose(both[1], plain(*(2 * x for x in inputs), mask), atol=TOLERANCE)


def test_a_step_for_a_gpu_has_one_kernel_for_the_output_and_one_for_the_gradient(monkeypatch):
    """The program is only lowered, which needs no GPU. Triton refuses wrong types and shapes."""
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    inputs, mask = drawn(40, 52, "bfloat16"), padding(52, 30, keys=52)

    def total(*inputs):
        return jnp.sum(jnp.sin(short_attention(*inputs, mask).astype("float32")))

    traced = jax.jit(jax.grad(total, (0, 1, 2))).trace(*inputs)
    program = traced.lower(lowering_platforms=("cuda",)).as_text()
    assert program.count("xla.gpu.triton(") == 2


def test_short_is_what_fits_into_blocks_of_powers_of_two():
    x = np.zeros((1, 1, LONGEST, 64))
    assert is_short(x, x)
    assert not is_short(x, np.zeros((1, 1, LONGEST + 1, 64)))
    assert not is_short(np.zeros((1, 1, LONGEST + 1, 64)), x)
    assert not is_short(x[..., :48], x[..., :48])
    assert not is_short(x[..., :8], x[..., :8])
