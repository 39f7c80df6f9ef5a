"""Layers, networks and auto-encoders: gradients that are not formed, and what a record's gradient depends on."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import mapped, slow_but
from jax.flatten_util import ravel_pytree

from skdpbayes.mechanism.contributions import (
    Quadratic,
    RankOne,
    Scattered,
    contribution_norms,
    parts_of,
)
from skdpbayes.models.networks.autoencoder import Autoencoder
from skdpbayes.models.networks.layers import ConvolutionalLayer, DenseLayer, forward
from skdpbayes.models.networks.outputs import Outputs
from skdpbayes.models.networks.perceptron import Classifier, Regressor

CONVOLUTION = ConvolutionalLayer(6, 5, 2, 3, 2, 1, 1.3)
DENSE = (DenseLayer(60, 7, 1.3), DenseLayer(7, 3, 0.8))
CONVOLUTIONAL = (CONVOLUTION, ConvolutionalLayer(*CONVOLUTION.places, 3, 4, 3, 2), DenseLayer(8, 1))


def records(n=5, y=None):
    rng = np.random.default_rng(0)
    y = rng.integers(0, 2, n).astype(np.int32) if y is None else y
    return {"x": rng.random((n, 60), np.float32), "y": y}


MODELS = {
    "dense": Classifier(DENSE, "tanh"),
    "convolutional": Classifier(CONVOLUTIONAL, "softplus"),
    "regression": Regressor((*DENSE[:1], DenseLayer(7, 1)), "relu", -1.0, 0.5),
    "auto-encoder": Autoencoder((DENSE[0], DenseLayer(7, 4)), (DenseLayer(2, 60),), "softplus"),
    "convolutional auto-encoder": Autoencoder(
        (CONVOLUTION, DenseLayer(60, 4)), (DenseLayer(2, 60),), "relu"
    ),
}


def params_of(model, key=0):
    leaves, tree = jax.tree.flatten(model.init())
    keys = jax.random.split(jax.random.key(key), len(leaves))
    return tree.unflatten(
        [jax.random.normal(k, leaf.shape) for k, leaf in zip(keys, leaves, strict=True)]
    )


@pytest.mark.parametrize("name", slow_but(MODELS, "dense", "regression"))
def test_gradients_that_are_not_formed_are_those_of_autodiff(name):
    model, batch = MODELS[name], records()
    if "encoder" in name:
        model = model.drawn(jax.random.key(3))
    params = params_of(model)
    scores = mapped(lambda record: model.score(params, record))(batch)
    wanted = mapped(lambda record: jax.grad(model.log_likelihood)(params, record))(batch)
    flat = sum(np.sum(np.square(leaf).reshape(5, -1), axis=1) for leaf in jax.tree.leaves(wanted))
    np.testing.assert_allclose(contribution_norms(scores), np.sqrt(flat), rtol=2e-5)
    parts, tree = parts_of(scores)
    sums = tree.unflatten([part.total() for part in parts])
    for got, leaf in zip(jax.tree.leaves(sums), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_allclose(got, leaf.sum(axis=0), rtol=1e-4, atol=1e-4)
    structured = sum(isinstance(part, RankOne) for part in parts)
    assert structured == sum(isinstance(layer, DenseLayer) for layer in model.layers)
    assert not any(isinstance(part, Quadratic | Scattered) for part in parts)


def test_a_convolution_is_that_of_jax():
    rng = np.random.default_rng(1)
    values, weights = rng.normal(size=(4, 60)), rng.normal(size=CONVOLUTION.weights_shape)
    filters, intercepts = CONVOLUTION.usual(weights)
    with jax.enable_x64(True):
        values, weights, filters = (jnp.asarray(x) for x in (values, weights, filters))
        wanted = jax.lax.conv_general_dilated(
            values.reshape(4, 6, 5, 2),
            filters,
            (1, 1),
            "VALID",
            dimension_numbers=("NHWC", "HWIO", "NHWC"),
        )
        got = CONVOLUTION(weights, CONVOLUTION.inputs(values, jnp))
    np.testing.assert_allclose(
        np.reshape(got, (4, 5, 4, 3)), np.asarray(wanted) + intercepts, rtol=1e-6
    )


@pytest.mark.parametrize("layers", [DENSE, CONVOLUTIONAL], ids=["dense", "convolutional"])
@pytest.mark.parametrize("activation", ["relu", "tanh", "logistic", "identity", "softplus"])
def test_predictions_are_those_that_were_fitted(layers, activation):
    x = records()["x"]
    weights = params_of(Classifier(layers, activation))
    fitted = mapped(lambda row: forward(layers, activation, weights, row, jnp)[0])(x)
    numpy = forward(
        layers, activation, [np.asarray(w, float) for w in weights], x.astype(float), np
    )[0]
    np.testing.assert_allclose(numpy, fitted, rtol=1e-4, atol=1e-5)


def test_the_prior_gives_outputs_of_unit_size_whatever_the_width():
    x = np.random.default_rng(0).normal(size=(1, 4000))
    layers = (DenseLayer(4000, 300),)
    outputs = [
        forward(layers, "identity", [np.random.default_rng(i + 1).normal(size=(300, 4001))], x, np)[
            0
        ]
        for i in range(5)
    ]
    assert np.std(outputs) == pytest.approx(
        np.sqrt(2), rel=0.05
    )  # the intercept's share is as large


@pytest.mark.parametrize("dtype", [bool, float])
def test_latent_noise_is_a_function_of_record_and_key_and_not_of_the_place_in_the_batch(dtype):
    model = MODELS["auto-encoder"].drawn(jax.random.key(0))
    x = jnp.asarray(
        np.random.default_rng(0).random((200, 60)) < 0.3 if dtype is bool else records(200)["x"],
        jnp.float32,
    )
    noise = np.asarray(mapped(lambda row: model._noise(row, (2,)))(x))
    back = np.asarray(mapped(lambda row: model._noise(row, (2,)))(x[::-1]))[::-1]
    np.testing.assert_array_equal(noise, back)
    assert len(np.unique(noise[:, 0])) == 200
    assert abs(noise.mean()) < 0.2 and noise.std() == pytest.approx(1, abs=0.15)
    other = MODELS["auto-encoder"].drawn(jax.random.key(1))
    again = np.asarray(mapped(lambda row: other._noise(row, (2,)))(x))
    assert abs(np.corrcoef(again.ravel(), noise.ravel())[0, 1]) < 0.2


def test_a_record_without_a_class_has_no_slope():
    model, record = MODELS["dense"], {"x": np.ones(60, np.float32), "y": np.int32(-1)}
    scores = mapped(lambda r: model.score(params_of(model), r))(
        jax.tree.map(lambda leaf: jnp.asarray(leaf)[None], record)
    )
    assert float(contribution_norms(scores)[0]) == 0


@pytest.mark.parametrize("slots", slow_but([64, 160, 384], 160, 384))
@pytest.mark.parametrize(
    "name", slow_but(["dense", "convolutional", "auto-encoder"], "dense", "auto-encoder")
)
def test_what_a_record_contributes_does_not_depend_on_its_slot(name, slots):
    """To the last bit, in the programs that sum integers."""
    model = MODELS[name]
    batch = {"x": np.random.default_rng(0).random((slots, 60), np.float32)}
    if name != "auto-encoder":
        batch["y"] = np.random.default_rng(1).integers(0, 2, slots).astype(np.int32)
    with jax.enable_x64(True):
        drawn = model if name != "auto-encoder" else model.drawn(jax.random.key(0))
        params = jax.tree.map(lambda leaf: leaf.astype(jnp.float32), params_of(model))

        @partial(jax.jit, compiler_options={"xla_backend_optimization_level": 1})
        def rounded(batch):
            parts, _ = parts_of(jax.vmap(lambda record: drawn.score(params, record))(batch))
            prepared = [part.prepared(2.0**36, 2.0**36, exact=True) for part in parts]
            return [(part.head, getattr(part, "right", gain), gain) for part, gain in prepared]

        for shift in (1, 17, slots - 1):
            moved = rounded(jax.tree.map(lambda leaf, s=shift: np.roll(leaf, s, axis=0), batch))
            moved = jax.tree.map(lambda leaf, s=shift: np.roll(leaf, -s, axis=0), moved)
            jax.tree.map(np.testing.assert_array_equal, moved, rounded(batch))


def outputs_of(name, n_draws=3):
    """Outputs of a network under draws of its weights, and parameters of the outputs."""
    network = MODELS[name]
    draws = jnp.stack([ravel_pytree(params_of(network, key))[0] for key in range(n_draws)])
    outputs = Outputs(network, draws)
    shifts = {"dense": [0.3, -0.2, 0.5], "convolutional": [0.4]}[name]
    return outputs, {"log_scale": jnp.float32(0.6), "offsets": jnp.array(shifts, jnp.float32)}


@pytest.mark.parametrize("name", ["dense", "convolutional"])
def test_the_law_of_a_class_is_that_of_the_outputs(name):
    outputs, params = outputs_of(name)
    classes = max(2, MODELS[name].layers[-1].n_out)
    batch = records(classes, np.arange(classes, dtype=np.int32))
    likelihood = mapped(lambda record: outputs.log_likelihood(params, record))
    one = {"x": np.repeat(batch["x"][:1], classes, axis=0), "y": batch["y"]}
    response = mapped(lambda record: outputs.response(params, record))(one)
    np.testing.assert_allclose(response.shares[0, 0], np.exp(likelihood(one)), rtol=1e-5)
    np.testing.assert_allclose(response.shares.sum(axis=2), 1, rtol=1e-5)
    gradients = mapped(
        lambda record: ravel_pytree(jax.grad(outputs.log_likelihood)(params, record))[0]
    )(one)
    scores = np.einsum("nkp,nk->np", response.slope, response.own[:, 0])
    np.testing.assert_allclose(scores, gradients, atol=1e-5)
    np.testing.assert_allclose(response.own[:, 0], response.others[0, 0], rtol=1e-6)


def test_a_record_without_a_class_has_no_response():
    outputs, params = outputs_of("dense")
    found = mapped(lambda record: outputs.response(params, record))(
        records(2, np.array([-1, 1], np.int32))
    )
    assert np.isnan(found.own[0]).all() and np.isfinite(found.own[1]).all()


@pytest.mark.parametrize("name", ["dense", "convolutional"])
def test_weights_are_rescaled_to_the_outputs(name):
    outputs, params = outputs_of(name, 1)
    factor, shift = outputs.rescaling(jax.tree.map(np.asarray, params))
    network, batch = outputs.network, records()
    unravel = ravel_pytree(network.init())[1]

    def under(vector):
        return mapped(lambda record: network.outputs(unravel(vector), record))(batch)

    old = under(outputs.draws[0])
    new = under(jnp.asarray(factor * outputs.draws[0] + shift, jnp.float32))
    wanted = np.exp(params["log_scale"]) * old + params["offsets"]
    np.testing.assert_allclose(new, wanted, rtol=1e-4, atol=1e-4)
