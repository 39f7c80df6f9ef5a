"""Clipped scores have mean zero whatever the covariates, and the slope that the model expects."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from jax.flatten_util import ravel_pytree
from numpyro import handlers

from skdpbayes.mechanism.contributions import Quadratic, contribution_norms
from skdpbayes.mechanism.private_sum import _chunk_sums
from skdpbayes.mechanism.spec import MechanismSpec
from skdpbayes.models.base import flat_start, score_scale, unbiased_weight, weighted_score
from skdpbayes.models.numpyro.laws import is_censored, n_responses, points
from skdpbayes.models.numpyro.program import Program, _in_support
from skdpbayes.models.numpyro.reading import read_model
from skdpbayes.models.protocols import Response
from skdpbayes.models.responses import fair_score, typical_length
from skdpbayes.privacy import GaussianSteps
from skdpbayes.solvers.dpvi import DPVI, FullRank
from skdpbayes.solvers.na_dpvi import NADPVI
from skdpbayes.solvers.released_curvature import SIDE_SHARE, curvature_query

FIELDS = ("x", (2,), "float32"), ("y", (), "float32")
RECORD = {"x": jnp.array([0.4, -0.8])}
NORM = jnp.float32(0.7)
N = 40_000


def poisson(eta, scale):
    return dist.Poisson(jnp.exp(eta - 1))


def many_counts(eta, scale):
    return dist.NegativeBinomial2(jnp.exp(eta + 5), 3 / scale)


def positive(eta, scale):
    return dist.Gamma(2 / scale, jnp.exp(eta))


def tails(eta, scale):
    return dist.StudentT(3.0, eta, scale)


def exponential(eta, scale):
    return dist.Exponential(scale * jnp.exp(eta))


def model_of(law):
    """Regression with an intercept and a scale; `limit` ends what is seen of a response."""

    def function(x, y=None, limit=None):
        w = numpyro.sample("w", dist.Normal(0, 1).expand([2]).to_event(1))
        a = numpyro.sample("a", dist.Normal(0, 1))
        s = numpyro.sample("s", dist.HalfNormal(1.0))
        own = law(a + x @ w, s)
        if limit is not None:
            own = dist.RightCensoredDistribution(own, limit <= y)
        with numpyro.plate("data", len(x)):
            numpyro.sample("y", own, obs=y)

    return function


def read(law, *more):
    return read_model(Program(model_of(law), (*FIELDS, *more)), {})[0]


def drawn(law, model, params, n=N):
    """Responses of one record."""
    values = model.values(params)
    eta = values["a"] + RECORD["x"] @ values["w"]
    return np.asarray(law(eta, values["s"]).sample(jax.random.key(0), (n,)), np.float32)


def somewhere(model):
    flat, unravel = flat_start(model)
    return unravel(jnp.asarray(np.random.default_rng(3).normal(size=flat.size) / 2, jnp.float32))


@pytest.mark.parametrize(
    "law",
    [
        dist.Normal(1000.0, 0.1),
        dist.StudentT(3.0, -2.0, 0.5),
        dist.Gamma(0.7, 3.0),
        dist.LogNormal(1.0, 0.5),
        dist.Beta(2.0, 5.0),
        dist.Poisson(0.05),
        dist.Poisson(300.0),
        dist.NegativeBinomial2(40.0, 2.0),
        dist.NegativeBinomial2(20.0, 0.5),
        dist.NegativeBinomial2(5000.0, 1.5),
        dist.ZeroInflatedPoisson(0.3, 4.0),
        dist.ZeroInflatedPoisson(0.3, 20.0),
    ],
    ids=lambda law: type(law).__name__,
)
def test_points_have_the_moments_of_their_law(law):
    assert n_responses(law.expand([1])) == 1
    y, shares = (np.asarray(x[:, 0], float) for x in points(law.expand([1])))
    sd = float(law.variance) ** 0.5
    assert abs(shares.sum() - 1) < 1e-5
    off = y - float(law.mean)
    assert abs(shares @ off) < 0.01 * sd
    if not isinstance(law, dist.StudentT):
        assert abs(shares @ off**2 / sd**2 - 1) < 0.03
    if law.support.is_discrete:  # zero tells most of a dispersion
        assert abs(shares[y == 0].sum() - np.exp(float(law.log_prob(0)))) < 0.01


@pytest.mark.parametrize("law", [dist.Gamma(0.5, 1.0), dist.Beta(0.5, 0.7), dist.Beta(4.0, 0.5)])
def test_a_density_without_bound_has_points_in_the_precision_of_rounds(law):
    """At the ends of their range, where points are in double precision and densities infinite."""
    with jax.enable_x64(True):
        y, shares = (np.asarray(x[:, 0], float) for x in points(law.expand([1])))
    assert abs(shares.sum() - 1) < 1e-5
    off = y - float(law.mean)
    assert abs(shares @ off) < 0.01 * float(law.variance) ** 0.5


@pytest.mark.parametrize(
    "law",
    [
        dist.MultivariateNormal(jnp.zeros(2), jnp.eye(2)),
        dist.RightCensoredDistribution(dist.Exponential(1.0), jnp.array([True])),
        dist.Unit(jnp.zeros(1)),
        dist.Dirichlet(jnp.ones(3)),
    ],
    ids=lambda law: type(law).__name__,
)
def test_laws_that_are_not_of_one_number_have_no_points(law):
    assert n_responses(law) == 0


def matrix_of(contributions):
    """First of the (P, P) matrices that contributions stand for."""
    if isinstance(contributions, Quadratic):  # the law has one number
        vector = contributions.vector[0]
        return np.asarray(contributions.weight[0] * jnp.outer(vector, vector))
    return np.asarray(contributions[0])


def checked_lengths(own, plain, of_variances, of_covariance):
    """Lengths of plain scores, (N,), whose clipped ones are checked to be as they are declared."""
    scores, plain = np.asarray(own.score), np.asarray(plain)
    assert np.linalg.norm(scores, axis=1).max() <= NORM * (1 + 1e-4)
    error = np.linalg.norm(scores.std(axis=0)) / N**0.5
    assert np.linalg.norm(scores.mean(axis=0)) < 4 * error
    # Clipped by its own norm it would not: the check can fail.
    lengths = np.linalg.norm(plain, axis=1)
    clipped = plain * np.minimum(1, NORM / lengths)[:, None]
    assert np.linalg.norm(clipped.mean(axis=0)) > 10 * error
    # The expected slope is E[score (log density)'], by the law that the responses come from.
    slope, expected = scores.T @ plain / N, matrix_of(own.curvature)
    assert np.linalg.norm(slope - expected) < 0.03 * np.linalg.norm(expected)
    np.testing.assert_allclose(own.variances[0], scores.var(axis=0), rtol=of_variances)
    covariance, declared = np.cov(scores.T), matrix_of(own.covariance)
    assert np.linalg.norm(declared - covariance) < of_covariance * np.linalg.norm(covariance)
    return lengths


@pytest.mark.parametrize(
    "law",
    [
        poisson,
        pytest.param(many_counts, marks=pytest.mark.slow),
        pytest.param(positive, marks=pytest.mark.slow),
        pytest.param(tails, marks=pytest.mark.slow),
    ],
)
def test_a_clipped_score_has_mean_zero_and_its_declared_slope_and_covariance(law):
    model = read(law)
    assert model.known_responses and model.program.unbiased
    params, unravel = somewhere(model), ravel_pytree(model.init())[1]
    flat = ravel_pytree(params)[0]
    y = drawn(law, model, params)

    @jax.jit
    @jax.vmap
    def fair(y):
        own = fair_score(model, params, RECORD | {"y": y}, NORM)
        plain = ravel_pytree(jax.grad(model.log_likelihood)(params, RECORD | {"y": y}))[0]
        return own, plain

    own, plain = fair(y)
    lengths = checked_lengths(own, plain, 0.008, 0.02)
    np.testing.assert_allclose(np.diag(matrix_of(own.covariance)), own.variances[0], rtol=1e-5)
    record = RECORD | {"y": y[0]}
    if law is not tails:
        typical = jax.jit(lambda: typical_length(model.response(params, record)))()
        np.testing.assert_allclose(typical, np.sqrt((lengths**2).mean()), rtol=0.03)
    # Not compiled as a whole, which would round both lengths differently.
    assert model.score_scale(model.init()) == 1
    np.testing.assert_allclose(model.score_scale(unravel(jnp.zeros_like(flat))), 1, rtol=1e-5)


def answers(x, y=None):
    """Three yes/no answers, of which a record tells together."""
    w = numpyro.sample("w", dist.Normal(0, 1).expand([2]).to_event(1))
    a = numpyro.sample("a", dist.Normal(0, 1).expand([3]).to_event(1))
    with numpyro.plate("data", len(x)):
        logits = (x @ w)[:, None] + a
        numpyro.sample("y", dist.Bernoulli(logits=logits).to_event(1), obs=y)


def answers_in_a_plate(x, y=None):
    w = numpyro.sample("w", dist.Normal(0, 1).expand([2]).to_event(1))
    a = numpyro.sample("a", dist.Normal(0, 1).expand([3]).to_event(1))
    with numpyro.plate("data", len(x), dim=-2), numpyro.plate("questions", 3):
        numpyro.sample("y", dist.Bernoulli(logits=(x @ w)[:, None] + a), obs=y)


def outcomes(x, y=None, z=None):
    """A count, and a number whose scale is learnt."""
    w = numpyro.sample("w", dist.Normal(0, 1).expand([2]).to_event(1))
    s = numpyro.sample("s", dist.HalfNormal(1.0))
    with numpyro.plate("data", len(x)):
        numpyro.sample("y", dist.Poisson(jnp.exp(x @ w)), obs=y)
        numpyro.sample("z", dist.Normal(x @ w, s), obs=z)


def label_and_number(x, y=None, z=None):
    """A response of two values, and one that 41 points stand for."""
    w = numpyro.sample("w", dist.Normal(0, 1).expand([2]).to_event(1))
    s = numpyro.sample("s", dist.HalfNormal(1.0))
    with numpyro.plate("data", len(x)):
        numpyro.sample("y", dist.Bernoulli(logits=x @ w), obs=y)
        numpyro.sample("z", dist.Normal(x @ w, s), obs=z)


SEVERAL = {"answers": (answers, ("y", (3,), "float32"))}
SEVERAL["plate"] = (answers_in_a_plate, SEVERAL["answers"][1])
SEVERAL["outcomes"] = (outcomes, FIELDS[1], ("z", (), "float32"))
SEVERAL["label"] = (label_and_number, *SEVERAL["outcomes"][1:])


@pytest.mark.parametrize("name", SEVERAL)
def test_several_clipped_scores_have_mean_zero_and_their_declared_slope_and_covariance(name):
    function, *fields = SEVERAL[name]
    model = read_model(Program(function, (FIELDS[0], *fields)), {})[0]
    assert model.known_responses and model.program.unbiased and not model.program.support
    params = somewhere(model)
    values = {name: np.asarray(x) for name, x in model.values(params).items()}
    rng, eta = np.random.default_rng(0), np.asarray(RECORD["x"]) @ values["w"]
    if "s" in values:
        many = {"y": rng.poisson(np.exp(eta), N), "z": rng.normal(eta, values["s"], N)}
        if name == "label":
            many["y"] = rng.random(N) < 1 / (1 + np.exp(-eta))
    else:
        many = {"y": rng.random((N, 3)) < 1 / (1 + np.exp(-eta - values["a"]))}
    many = {name: x.astype(np.float32) for name, x in many.items()}

    @jax.jit
    @jax.vmap
    def fair(many):
        own = fair_score(model, params, RECORD | many, NORM)
        plain = ravel_pytree(jax.grad(model.log_likelihood)(params, RECORD | many))[0]
        return own, plain, model.score_norm(params, RECORD | many)

    own, plain, typical = fair(many)
    lengths = checked_lengths(own, plain, 0.03, 0.03)
    np.testing.assert_allclose(typical[0], np.sqrt((lengths**2).mean()), rtol=0.03)
    # One that is missing, or impossible, leaves out the record: it has no score of the others.
    odd = {"y": -1.0, "z": 0.0} if "s" in values else {"y": np.float32([1, np.nan, 0])}
    assert np.isnan(jax.jit(fair_score)(model, params, RECORD | odd, NORM).score).all()
    assert np.isnan(model.score_norm(params, RECORD | odd))


class Unequal:
    """Two responses whose scores have one direction, one of them skewed; a third tells nothing."""

    known_responses = True
    values = ((1.0, -1.0), (6.0, -1.0), (2.0, -2.0))
    shares = ((0.5, 0.5), (1 / 7, 6 / 7), (0.5, 0.5))

    def __init__(self, n=2):
        self.n = n

    def response(self, params, record):
        del params
        others = jnp.array(self.values)[: self.n, :, None] * jnp.eye(self.n)[:, None]
        own = others[jnp.arange(self.n), record[: self.n]]
        slope = jnp.array([[1.0], [1.0], [0.0]])[: self.n]
        return Response(slope, own, others, jnp.array(self.shares)[: self.n])


def test_several_scores_have_mean_zero_and_their_norm_exactly():
    with jax.enable_x64(True):
        shares, model = np.array(Unequal.shares), Unequal()
        places = np.array([(i, j) for i in range(2) for j in range(2)])
        probability = shares[0, places[:, 0]] * shares[1, places[:, 1]]
        for norm in (0.5, 2.0, 100.0):
            fair = jax.vmap(lambda at, norm=norm: fair_score(model, None, at, norm))
            own = fair(jnp.asarray(places))
            np.testing.assert_allclose(probability @ own.score, 0, atol=1e-12)
            assert np.abs(own.score).max() <= norm * (1 + 1e-12)
            spread = probability @ np.asarray(own.score) ** 2
            np.testing.assert_allclose(own.variances[0], spread, rtol=1e-6)
            # Of its part of the norm a response keeps what its own length leaves.
            lengths = np.array([1, 6**0.5])
            parts = norm * lengths / lengths.sum()
            weight = min(norm / lengths.sum(), 1)
            kept = np.minimum(weight, parts[:, None] / np.abs(np.array(Unequal.values)[:2]))
            mean = np.sum(shares[:2] * kept * np.array(Unequal.values)[:2], axis=1)
            room = 1 / (1 + np.max(np.abs(mean) / parts))
            np.testing.assert_allclose(own.weight, room * weight, rtol=1e-9)
            # A response whose law no parameter moves is left out, and the record is not.
            with_another = fair_score(Unequal(3), None, jnp.array([0, 1, 1]), norm)
            np.testing.assert_allclose(with_another.score, own.score[1], rtol=1e-9)
            np.testing.assert_allclose(with_another.weight, own.weight[1], rtol=1e-9)
            np.testing.assert_allclose(with_another.variances, own.variances[1], rtol=1e-9)


def test_scores_where_rounds_start_are_those_of_the_law():
    """At logits of zero autodiff has no slope of NumPyro's Bernoulli law."""
    for function, field in ((answers, ("y", (3,), "float32")), (model_of(yes_or_no), FIELDS[1])):
        model = read_model(Program(function, (FIELDS[0], field)), {})[0]
        record = RECORD | {"y": jnp.ones(field[1])}
        if model.known_responses:
            fair = jax.jit(fair_score)(model, model.init(), record, jnp.float32(99))
            np.testing.assert_allclose(np.trace(fair.curvature), 3 * 0.25 * 1.8, rtol=1e-4)
        else:
            curvature = jax.jit(model.curvature)(model.init(), record)
            trace = curvature.weight[0, 0] * np.sum(curvature.vector**2)
            np.testing.assert_allclose(trace, 0.25 * 1.8, rtol=1e-4)
        score = ravel_pytree(jax.jit(jax.grad(model.log_likelihood))(model.init(), record))[0]
        answers_ = 3 if model.known_responses else 1
        np.testing.assert_allclose(score[0], 0.5, rtol=1e-4)
        np.testing.assert_allclose(score[-2:], answers_ * 0.5 * RECORD["x"], rtol=1e-4)


def follows_another(x, y=None, z=None):
    w = numpyro.sample("w", dist.Normal(0, 1))
    with numpyro.plate("data", len(x)):
        numpyro.sample("y", dist.Normal(w, 1), obs=y)
        numpyro.sample("z", dist.Normal(w * y, 1), obs=z)


def as_many_as_another(x, y=None, z=None):
    w = numpyro.sample("w", dist.Normal(0, 1))
    with numpyro.plate("data", len(x)):
        numpyro.sample("y", dist.Poisson(jnp.exp(w)), obs=y)
        numpyro.sample("z", dist.Binomial(jnp.int32(y), logits=w), obs=z)


def one_is_scaled(x, y=None, z=None):
    w = numpyro.sample("w", dist.Normal(0, 1))
    with numpyro.plate("data", len(x)):
        numpyro.sample("y", dist.Normal(w, 1), obs=y)
        with numpyro.handlers.scale(scale=0.5):
            numpyro.sample("z", dist.Normal(w, 1), obs=z)


def with_a_factor(x, y=None):
    w = numpyro.sample("w", dist.Normal(0, 1))
    with numpyro.plate("data", len(x)):
        numpyro.sample("y", dist.Normal(w, 1), obs=y)
        numpyro.factor("more", -w * x[:, 0])


def label_with_a_factor(x, y=None):
    w = numpyro.sample("w", dist.Normal(0, 1))
    with numpyro.plate("data", len(x)):
        numpyro.sample("y", dist.Bernoulli(logits=w), obs=y)
        numpyro.factor("more", -w * x[:, 0])


def residuals(x, y=None):
    w = numpyro.sample("w", dist.Normal(0, 1))
    with numpyro.plate("data", len(x)):
        numpyro.sample("y", dist.Normal(0, 1), obs=y - w * x[:, 0])


def many_answers(x, y=None):
    w = numpyro.sample("w", dist.Normal(0, 1).expand([17]).to_event(1))
    with numpyro.plate("data", len(x)):
        numpyro.sample("y", dist.Bernoulli(logits=w + x[:, :1]).to_event(1), obs=y)


def many_categories(x, y=None):
    w = numpyro.sample("w", dist.Normal(0, 1).expand([90]).to_event(1))
    with numpyro.plate("data", len(x)):
        law = dist.Categorical(logits=jnp.broadcast_to(w, (len(x), 4, 90)))
        numpyro.sample("y", law.to_event(1), obs=y)


def one_law_for_all(x, y=None):
    w = numpyro.sample("w", dist.Normal(0, 1))
    with numpyro.plate("data", len(x), dim=-2):
        numpyro.sample("y", dist.Normal(w, 1), obs=y)


@pytest.mark.parametrize(
    ("function", "fields"),
    [
        (follows_another, SEVERAL["outcomes"][1:]),
        (as_many_as_another, SEVERAL["outcomes"][1:]),
        (one_is_scaled, SEVERAL["outcomes"][1:]),
        (with_a_factor, (FIELDS[1],)),
        (label_with_a_factor, (FIELDS[1],)),
        (residuals, (FIELDS[1],)),
        (many_answers, (("y", (17,), "float32"),)),
        (many_categories, (("y", (4,), "int32"),)),
        (one_law_for_all, (("y", (3,), "float32"),)),
    ],
)
def test_responses_that_are_not_known_to_be_few_and_independent_are_clipped_with_a_bias(
    function, fields
):
    """A weight that depends on another response would bias the score of that one."""
    model = read_model(Program(function, (FIELDS[0], *fields)), {})[0]
    assert not model.known_responses and not model.program.unbiased and not model.program.support


@pytest.mark.parametrize(
    ("kind", "each"),
    [
        (dist.Normal, [(0.0, 2.0), (5.0, 0.1)]),
        (dist.Poisson, [(0.3,), (40.0,), (300.0,)]),
        (dist.NegativeBinomial2, [(5000.0, 1.5), (0.2, 1.5)]),
        (dist.Gamma, [(0.7, 3.0), (40.0, 1.0)]),
        (dist.Uniform, [(0.0, 4.0), (3.0, 4.0)]),
        (dist.BernoulliLogits, [(-1.0,), (3.0,)]),
    ],
    ids=lambda x: getattr(x, "__name__", ""),
)
def test_points_of_several_numbers_are_those_of_each(kind, each):
    together = kind(*jnp.array(each).T[:, None]).to_event(1)
    assert n_responses(together) == len(each) and n_responses(kind(*each[0])) == 1
    y, shares = points(together)
    for i, own in enumerate(each):
        alone, its_shares = points(kind(*own))
        np.testing.assert_allclose(y[:, i], alone[:, 0], rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(shares[:, i], its_shares[:, 0], rtol=1e-4, atol=1e-7)
        far = np.asarray(shares[:, i]) == 0
        if kind is dist.Normal:  # far out, where densities may overflow
            assert far.any() and (y[far, i] == y[np.argmax(shares[:, i]), i]).all()


def shares_of_one(eta, scale):
    return dist.Beta(0.5 * scale, jnp.exp(eta))


@pytest.mark.parametrize(("intercept", "counts"), [(-1.0, True), (-5.0, False)])
def test_a_record_whose_law_has_no_points_does_not_count(intercept, counts):
    """Of Beta(0.5, 0.01) nearly all is closer to one than single precision tells."""
    model = read(shares_of_one)
    params = model.init() | {"a": jnp.float32(intercept)}
    fair = jax.jit(fair_score)(model, params, RECORD | {"y": jnp.float32(0.9)}, NORM)
    parts = (fair.score, fair.variances, fair.curvature)
    assert [bool(np.isfinite(part).all()) for part in parts] == [counts] * 3


def yes_or_no(eta, scale):
    return dist.Bernoulli(logits=eta)


@pytest.mark.parametrize(
    ("law", "more", "possible", "impossible"),
    [
        (poisson, (), [0, 3, 2.5], [-1, -0.5, -9, np.nan]),
        (positive, (), [1e-3, 4], [-1, np.nan, np.inf]),
        (exponential, (), [0, 4], [-1, np.nan]),
        (exponential, (("limit", (), "float32"),), [0, 4], [-1, np.nan]),
        (yes_or_no, (), [0, 1], [-1, 2, np.nan]),
    ],
    ids=["counts", "positive", "times", "censored", "labels"],
)
def test_a_response_that_its_law_cannot_have_does_not_count(law, more, possible, impossible):
    """NumPyro's laws go on to finite scores beyond their support."""
    model = read(law, *more)
    params = somewhere(model)

    @jax.jit
    @jax.vmap
    def one(y):
        record = RECORD | {"y": y} | ({"limit": jnp.float32(2)} if more else {})
        if model.known_responses:
            fair = fair_score(model, params, record, NORM)
            parts = [fair.score, fair.curvature, fair.covariance, fair.variances]
        else:
            score = weighted_score(model, params, record, NORM)[0]
            parts = [ravel_pytree(score)[0], model.curvature(params, record)]
        parts = [jax.tree.leaves(part)[0] for part in parts]
        return jnp.stack([jnp.isfinite(x).all() & (x != 0).any() for x in parts])

    counted = np.asarray(one(jnp.array(possible + impossible, jnp.float32)))
    assert counted[: len(possible)].all() and not counted[len(possible) :].any()


def test_zero_is_possible_at_either_end_of_a_support():
    for law in (dist.Uniform(-1.0, 0.0), dist.Exponential(), dist.Uniform(-1.0, 1.0)):
        assert _in_support(law, jnp.float32(0))
    assert not _in_support(dist.Uniform(-1.0, 0.0), jnp.float32(0.1))
    assert not _in_support(dist.Exponential(), jnp.float32(-1e-3))


@pytest.mark.slow
def test_the_curvature_of_few_values_is_their_fisher_information():
    """With linear logits it is the negative Hessian."""

    def logistic(x, y=None):
        w = numpyro.sample("w", dist.Normal(0, 1).expand([2]).to_event(1))
        with numpyro.plate("data", len(x)):
            numpyro.sample("y", dist.BernoulliLogits(x @ w), obs=y)

    def ordered(x, y=None):
        w = numpyro.sample("w", dist.Normal(0, 1).expand([2]).to_event(1))
        with numpyro.plate("data", len(x)):
            numpyro.sample("y", dist.OrderedLogistic(x @ w, jnp.array([-1.0, 0.5])), obs=y)

    fields, record = (FIELDS[0], ("y", (), "int32")), RECORD | {"y": jnp.int32(1)}
    model = read_model(Program(logistic, fields), {})[0]
    params = {"w": jnp.array([0.5, -1.0])}
    own = model.curvature(params, record)
    assert isinstance(own, Quadratic)  # never formed
    hessian = jax.hessian(model.log_likelihood)(params, record)["w"]["w"]
    np.testing.assert_allclose(own.weight * jnp.outer(own.vector, own.vector), -hessian, rtol=1e-4)
    model = read_model(Program(ordered, fields), {})[0]
    records = [RECORD | {"y": jnp.int32(y)} for y in range(3)]
    scores = [jax.grad(model.log_likelihood)(params, record)["w"] for record in records]
    shares = [jnp.exp(model.log_likelihood(params, record)) for record in records]
    expected = sum(p * jnp.outer(v, v) for p, v in zip(shares, scores, strict=True))
    np.testing.assert_allclose(model.curvature(params, record), expected, rtol=1e-3, atol=1e-6)


@pytest.mark.slow
def test_the_scale_of_scores_follows_the_parameters():
    """Scores of a normal law are as long as its scale is short."""
    model = read(lambda eta, scale: dist.Normal(eta, scale))
    here, there = model.init(), model.init() | {"s": jnp.float32(-1.0)}
    ratio = model.values(here)["s"] / model.values(there)["s"]
    assert 0.6 * ratio < model.score_scale(there) < 1.1 * ratio and ratio > 2


@pytest.mark.slow
def test_a_score_that_is_not_clipped_is_the_likelihoods():
    model, record = read(tails), RECORD | {"y": jnp.float32(0.3)}
    params = somewhere(model)
    own, weight = weighted_score(model, params, record, jnp.float32(1e3))
    score = jax.grad(model.log_likelihood)(params, record)
    assert weight == 1
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-5), own, score)


def test_a_censored_response_has_a_bounded_score_of_mean_zero():
    """Whenever records stop being seen, on which the bound does not depend."""
    limit = ("limit", (), "float32")
    model = read(exponential, limit)
    assert model.program.censored and not model.known_responses and model.program.unbiased
    params = somewhere(model)
    ends = np.random.default_rng(0).exponential(2.0, N).astype(np.float32)
    seen = np.minimum(drawn(exponential, model, params), ends)

    @jax.jit
    @jax.vmap
    def one(y, limit):
        record = RECORD | {"y": y, "limit": limit}
        score = ravel_pytree(jax.grad(model.log_likelihood)(params, record))[0]
        weight = unbiased_weight(model, params, record, NORM)
        return score, weight, model.score_bound(params, record)

    score, weight, bound = (np.asarray(x, float) for x in one(seen, ends))
    assert np.ptp(weight) < 1e-6 and np.ptp(bound) < 1e-5
    assert np.linalg.norm(score, axis=1).max() <= bound[0] * 1.05
    assert (np.abs(score.mean(axis=0)) < 4 * score.std(axis=0) / N**0.5).all()
    with handlers.seed(rng_seed=0):
        assert is_censored(dist.RightCensoredDistribution(dist.Exponential(jnp.ones(1)), True))


def test_the_covariance_of_a_bounded_score_is_that_of_the_law():
    """Of times that are all seen, over the law; the weight is one for all of them."""
    model = read(exponential, ("limit", (), "float32"))
    params = somewhere(model)
    y = drawn(exponential, model, params)
    query = curvature_query(model, params, NORM, several_rows=False, correlated=True)

    @jax.jit
    @jax.vmap
    def one(y):
        record = RECORD | {"y": y, "limit": jnp.float32(1e9)}
        score, _ = weighted_score(model, params, record, NORM)
        sums = query(record)
        return ravel_pytree(score)[0], sums["scores"], sums["variances"]

    scores, covariances, variances = (np.asarray(x, float) for x in one(y))
    expected = np.cov(scores.T)
    found = covariances.mean(axis=0)
    assert np.linalg.norm(found - expected) < 0.03 * np.linalg.norm(expected)
    own = 2**0.5 * variances.mean(axis=0)
    np.testing.assert_allclose(own, [np.trace(found), *np.diag(found)], rtol=1e-3)


ODD = [0, 1e-40, 0.5, -2, 1e3, 1e30, -1e30, np.inf, -np.inf, np.nan]


def records_of(fields, more, n=600):
    """Records with responses `more` and ``more + 1``; from the first third on some odd numbers."""
    rng = np.random.default_rng(1)

    def values(name, shape, dtype):
        plain = rng.normal(size=(n, *shape)) if name == "x" else rng.integers(0, 2, n) + more
        odd = rng.random(plain.shape) < 0.3
        odd[: n // 3] = False
        return np.where(odd, rng.choice(ODD, plain.shape), plain).astype(dtype)

    return {name: values(name, shape, dtype) for name, shape, dtype in fields}


def in_units_of_the_noise(model, solver, records, theta):
    """For each round: what each record adds, lengths that the query gives its blocks, and norms.

    Sums are over the largest distance that is accounted for, and lengths over the norms of blocks.
    """
    spec = MechanismSpec((GaussianSteps(1.3, 1.0, 10),))
    with jax.enable_x64(True):
        mechanism, key = spec.traced(), jax.random.key(0)
        for one in solver.rounds(model, mechanism):

            @jax.jit
            def of_each(theta, records, one=one):
                at = {"theta": theta} if isinstance(solver, NADPVI) else {"mu": theta}
                state = solver.init(model, key)._replace(**at)
                query, blocks = one.query(state, one.point(state, key)), one.blocks(state)
                units = {name: mechanism.units(0, own.share) for name, own in blocks.items()}

                def of_one(record):
                    alone = jax.tree.map(lambda x: x[None], record)
                    sums = _chunk_sums(query, blocks, units, True, alone, jnp.ones(1, bool))
                    lengths = {
                        name: contribution_norms(own)[0] / blocks[name].clipping_norm
                        for name, own in jax.vmap(query)(alone).items()
                    }
                    square = sum(jnp.sum(x.astype(float) ** 2) for x in jax.tree.leaves(sums))
                    return jnp.sqrt(square) * 1.3 / mechanism.noise_std, lengths

                norms = {name: jnp.asarray(own.clipping_norm) for name, own in blocks.items()}
                return *jax.lax.map(of_one, records), norms

            yield jax.tree.map(np.asarray, of_each(theta, records))


def labels(eta, scale):
    return dist.BernoulliLogits(scale * eta)


NA_DPVI = NADPVI(np.float32(0.9), np.float32(2.0))
A_GUIDE = FullRank(curvature_ratio=np.float32(2))
A_DPVI = DPVI(A_GUIDE, np.float32(0.1), np.float32(0.9), np.float32(600), np.float32(0.5))


@pytest.mark.parametrize(
    "law, solver, ratio",
    [
        pytest.param(poisson, A_DPVI, 2, marks=pytest.mark.slow),
        pytest.param(tails, NA_DPVI, 2 / 0.81, marks=pytest.mark.slow),
        pytest.param(positive, NA_DPVI, 2 / 0.81, marks=pytest.mark.slow),
        pytest.param(exponential, NA_DPVI, 2 / 0.81, marks=pytest.mark.slow),
        (labels, NADPVI(np.float32(0.9), np.float32(0.1)), 0.1 / 0.81),
    ],
)
def test_no_record_adds_more_than_the_norm_that_noise_is_for(law, solver, ratio):
    """Not what is huge, no number, or no possible response either, in any round.

    Queries whose scores have a known bound do not rely on the mechanism to clip them, which would
    bias them; so their bound is the norm of the block, at parameters where it is not the first.
    """
    fields = (*FIELDS, *([("limit", (), "float32")] if law is exponential else []))
    model = read_model(Program(model_of(law), fields), {})[0]
    records = records_of(fields, 0 if law in (poisson, labels) else 0.5)
    theta = np.full(flat_start(model)[0].size, 0.8, np.float32)
    if model.known_responses:
        scale = score_scale(model, flat_start(model)[1](jnp.asarray(theta)))
        assert scale > 1.5 or scale < 0.7
    scores, curvatures = in_units_of_the_noise(model, solver, records, theta)
    # A curvature at full length has the most of the budget of its round.
    beside = 1 if isinstance(solver, DPVI) or not model.known_responses else 2
    most = (1 - beside * SIDE_SHARE) ** 0.5
    for (added, *_), least in ((scores, 0.99), (curvatures, 0.99 * most)):
        assert np.isfinite(added).all() and least < added.max() <= 1
        missing = np.isnan(records["x"]).any(axis=1) | np.isnan(records["y"])
        assert missing.any() and (added[missing] == 0).all()
    lengths = scores[1]["score"]
    plain = slice(len(lengths) // 3)
    assert 0.6 < lengths[plain].max() <= 1 + 1e-5
    square = scores[2]["score"] ** 2
    np.testing.assert_allclose(curvatures[2]["curvature"] / square, ratio, rtol=1e-4)
    if model.known_responses:  # whatever the response
        assert lengths[np.isfinite(lengths)].max() <= 1 + 1e-5


class NearlyCollinear:
    """A law of two numbers whose slopes are long, and differ by little."""

    known_responses = True

    def response(self, params, record):
        del params, record
        own, shares = jnp.float32([[9, -9]]), jnp.float32([[0.5, 0.5]])
        others = jnp.stack([own, -own], axis=1) / 3
        return Response(jnp.float32([[1e5, 0], [1e5, 1]]), own, others, shares)


@pytest.mark.slow
def test_nearly_collinear_slopes_do_not_hide_the_length_of_a_score():
    with jax.enable_x64(True):
        model = NearlyCollinear()
        own = fair_score(model, None, None, NORM)
        np.testing.assert_allclose(typical_length(model.response(None, None)), 3, rtol=1e-3)
    np.testing.assert_allclose(own.score, [0, -NORM], atol=1e-3)
    np.testing.assert_allclose(own.weight, NORM / 3, rtol=1e-3)
