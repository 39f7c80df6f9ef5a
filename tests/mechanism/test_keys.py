"""Secrets drive ChaCha20; keys come from the operating system, and what leaves them behind is said."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.random import threefry_2x32
from sklearn.base import clone
from whitebox import drawn

from skdpbayes import DPBayesianLogisticRegression, DPGaussianMixture, Schema
from skdpbayes.facts import Shape
from skdpbayes.intake.packing import pack_records
from skdpbayes.mechanism import keys as random
from skdpbayes.mechanism import threefry
from skdpbayes.mechanism.private_sum import private_sum
from skdpbayes.mechanism.spec import Block, MechanismSpec
from skdpbayes.privacy import GaussianSteps


def test_block_function_is_threefry():
    key, counters = jnp.asarray([123, 2**32 - 5], jnp.uint32), jnp.arange(64, dtype=jnp.uint32)
    ours = jnp.concatenate(threefry.threefry(key, counters[:32], counters[32:]))
    np.testing.assert_array_equal(ours, threefry_2x32(key, counters))
    # Random123's known answer for a zero key and counter
    zero = jnp.zeros(2, jnp.uint32)
    assert [int(x[0]) for x in threefry.threefry(zero, zero[:1], zero[:1])] == [
        0x6B200159,
        0x99BA4EFE,
    ]


def test_bits_are_of_different_counters():
    """Words of every width are leading bits of the cipher, one counter for each, whatever the shape."""
    key = threefry.wrap_keys(jnp.asarray([123, 456]))
    words = threefry.threefry(
        jnp.asarray([123, 456], jnp.uint32),
        jnp.zeros(6, jnp.uint32),
        jnp.arange(6, dtype=jnp.uint32),
    )
    high, low = (np.asarray(w, np.uint64) for w in words)
    with jax.enable_x64(True):
        for width in (8, 16, 32, 64):
            drawn = jax.random.bits(key, (2, 3), f"uint{width}")
            assert drawn.dtype == f"uint{width}"
            np.testing.assert_array_equal(
                np.asarray(drawn, np.uint64).ravel(), ((high << 32) | low) >> (64 - width)
            )


def test_the_stream_is_chacha20():
    """RFC 8439, appendix A.1: keystream of the zero key and nonce, blocks 0 and 1."""
    stream = random.Stream(bytes(32))
    got = np.concatenate(
        [stream.integers(np.uint8, 40), stream.integers(np.uint8, (8, 11)).ravel()]
    )
    want = (
        "76b8e0ada0f13d90405d6ae55386bd28bdd219b8a08ded1aa836efcc8b770dc7"
        "da41597c5157488d7724e03fb8d84a376a43b8f41518a11cc387b669b2ee6586"
        "9f07e7be5551387a98ba977c732d080dcb0f29a048e3656912c6533e32ee7aed"
        "29b721769ce64e43d57133b074d839d531ed1f28510afb45ace10a1f4b794d6f"
    )
    assert got.tobytes().hex() == want


def test_lanes_are_nonces_of_their_own():
    """RFC 8439, appendix A.1, test vector 4: the last byte of the nonce is two."""
    key = bytes(32)
    words = "c2c64d378cd536374ae204b9ef933fcd1a8b2288b3dfa49672ab765b54ee27c7"
    lane = 2 << 56
    assert random.Stream(key, lane).integers(np.uint8, 32).tobytes().hex() == words
    first = {random.Stream(key, lane).integers(np.uint64, 4).tobytes() for lane in range(500)}
    assert len(first) == 500


def test_a_stream_does_not_end_and_does_not_repeat(monkeypatch):
    monkeypatch.setattr(random, "_BYTES_PER_NONCE", 64)
    stream = random.Stream(bytes(32))
    words = np.concatenate(
        [stream.integers(np.uint64, 5) for _ in range(200)] + [stream.integers(np.uint64, 50)]
    )
    assert len(np.unique(words)) == len(words) == 1050


def test_keys_are_the_operating_systems_bytes(monkeypatch):
    material, asked = bytes(range(176)), []
    monkeypatch.setattr(random.os, "urandom", lambda n: asked.append(n) or material[:n])
    np.random.seed(0)  # noqa: NPY002 - keys must not come from here
    keys = random.fit_keys(None, 2)
    assert asked == [176]
    solver = np.asarray(jax.random.key_data(keys.solver)).tobytes()
    assert b"".join([*keys.sampling, *keys.noise, solver, keys.counting]) == material
    assert {len(key) for key in (*keys.sampling, *keys.noise, keys.counting)} == {32}


def test_noise_of_ordinary_records_is_the_noise_of_null_ones():
    """A mechanism that forgets its noise where there is something to hide passes every test on null records."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(300, 5)).astype(np.float32)

    def release(x, sigma):
        with jax.enable_x64(True):
            spec, records = (
                MechanismSpec((GaussianSteps(sigma, 0.5, 1),)),
                jax.device_put(pack_records(x=x)),
            )
            how = (lambda r: {"s": r["x"]}), {"s": Block(jnp.float32(1.0))}
            out = private_sum(
                *how, jax.device_put(spec.traced()), drawn(*how, spec, records, 3), 0, records
            )
            return np.asarray(out["s"], np.float64)

    ordinary = release(x, 3.0) - release(x, 1e-9)
    assert np.abs(release(x, 1e-9)).max() > 1  # there is a signal
    np.testing.assert_allclose(ordinary, release(0 * x, 3.0), atol=1e-4)
    assert np.abs(ordinary).min() > 0.01


def test_plans_do_not_know_the_number_of_records_under_add_remove():
    for parameters in ({"solver": "dpvi"}, {"solver": "sgld", "learning_rate": 1e-6}):
        model = DPBayesianLogisticRegression(
            adjacency="add_remove", sampling_rate=0.5, n_steps=20, classes=[0, 1], **parameters
        )
        first, second = (model.plan(n, 3) for n in (400, 399))
        assert str((first.solver, first.spec)) == str((second.solver, second.spec))


@pytest.mark.parametrize(
    "model",
    [
        DPBayesianLogisticRegression(classes=[0, 1]),
        DPGaussianMixture(n_components=2, bounds=(-3, 3)),
    ],
    ids=lambda model: type(model).__name__,
)
def test_what_chooses_a_solver_is_public(model):
    """Never the number of rows under ``add_remove``, nor that of a person's rows."""

    def decided(plan):
        kinds = jax.tree.structure((plan.model, plan.solver))
        numbers = [np.asarray(x).tolist() for x in jax.tree.leaves((plan.model, plan.solver))]
        return plan.spec, kinds, numbers, plan.report

    hidden = clone(model).set_params(adjacency="add_remove", sampling_rate=0.5)
    few, many = (hidden._planned(hidden._reader().declared(Shape(n, 3))) for n in (20, 10_000_000))
    assert decided(few) == decided(many)
    assert few.report.public == hidden.plan(None, 3).report.public
    told, by_person = model.plan(20, 3), clone(model).set_params(max_rows_per_person=3)
    rng, plans = np.random.default_rng(0), []
    for n in (20, 900):
        persons = np.append(np.arange(20), np.zeros(n - 20, int))
        X, y = rng.normal(size=(n, 3)), rng.integers(0, 2, n)
        plans.append(by_person._prepared(X, y, persons)[0])
    assert decided(plans[0]) == decided(plans[1])
    assert plans[0].report.public["n_persons"] == told.report.public["n_samples"] == 20


def test_a_fit_leaves_nothing_else_behind():
    X, y = np.random.default_rng(0).normal(size=(90, 2)), np.arange(90) % 2
    model = DPBayesianLogisticRegression(classes=[0, 1], n_steps=20).fit(X, y)
    fitted = {
        "posterior_", "posterior_samples_", "coef_", "intercept_", "classes_", "n_iter_", "data_norm_", "diagnostics_",
        "privacy_spent_", "usable_records_", "n_features_in_", "_chains", "_likelihood", "_draws_seed",
        "_quiet",
    }  # fmt: skip
    assert set(vars(model)) - set(model.get_params()) == fitted


def test_one_cell_of_a_list_changes_no_other_record():
    X, y = np.random.default_rng(0).normal(size=(90, 2)).tolist(), (np.arange(90) % 2).tolist()
    fits, two = [], Schema({"a": {}, "b": {}}, outcome={"name": "y", "labels": [0, 1]})
    for cell, label in ((1.0, 1), ("x", "x"), (1j, [1]), ([1], None)):
        X[5][0], y[5] = cell, label
        fits.append(
            DPBayesianLogisticRegression(np.inf, classes=two, n_steps=50, random_state=1).fit(X, y)
        )
    for other in fits[1:]:
        np.testing.assert_allclose(other.coef_, fits[0].coef_, atol=0.1)
        np.testing.assert_array_equal(other.coef_, fits[1].coef_)
    X[5] = [1.0]
    DPBayesianLogisticRegression(classes=two, n_steps=20).fit(X, y)


def test_an_interrupted_refit_leaves_no_posterior(monkeypatch):
    X, y = np.random.default_rng(0).normal(size=(90, 2)), np.arange(90) % 2
    model = DPBayesianLogisticRegression(classes=[0, 1], n_steps=20).fit(X, y)
    first = model.privacy_spent_

    def interrupted(*args):
        raise KeyboardInterrupt

    monkeypatch.setattr(model, "_run", interrupted)
    try:
        model.set_params(epsilon=0.1).fit(X, y)
    except KeyboardInterrupt:
        pass
    assert not hasattr(model, "posterior_") and not hasattr(model, "coef_")
    assert model.privacy_spent_.epsilon <= 0.1 and model.privacy_spent_.cumulative == first.releases


def test_keys_of_steps_are_folded_as_jax_folds_them():
    key = random.fit_keys(3).solver[0]
    expected = [jax.random.key_data(jax.random.fold_in(key, step)) for step in (0, 5, 6, 511)]
    words = threefry.words_of_steps(key, 0, 512)
    np.testing.assert_array_equal(words[[0, 5, 6, 511]], expected)
    np.testing.assert_array_equal(threefry.words_of_steps(key, 5, 7), expected[1:3])
