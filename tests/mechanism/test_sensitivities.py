"""No record moves a released statistic farther than its model declares, and some come close.

To add a model, add an entry to `MODELS`: its statistic, the bound it declares, the largest distance
of two records' statistics (derived by hand), and how to make a record of a vector.
"""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from farthest import Case, check

from skdpbayes.mechanism.contributions import Quadratic
from skdpbayes.models.belief_net import SigmoidBeliefNet
from skdpbayes.models.families import BetaBernoulli, DirichletCategorical, GammaExponential
from skdpbayes.models.linear import Huber, LinearRegression, normal_prior
from skdpbayes.models.linear_sums import LinearSums
from skdpbayes.models.logistic import LogisticRegression
from skdpbayes.models.rescaled import RescaledLinear
from skdpbayes.models.score_unit import WithScoreUnit

f32 = np.float32


def of_model(model, substitution, size, record=lambda v: {"x": v}, scale=1.0):
    return Case(model.statistic, model.statistic_bound(), substitution, size, record, scale)


def response(v):
    return {"x": v[:-1], "y": v[-1]}


def code(v):
    return {"x": jnp.where(jnp.abs(v[0]) < 1e6, jnp.floor(4 * v[0]), -1).astype(jnp.int32)}


def linear_sums(norm):
    hyper = {name: f32(1) for name in ("precision", "shape", "scale", "unit")}
    return LinearSums(
        3,
        **hyper,
        normal=normal_prior(1, 1, 1),
        huber=Huber.at(2),
        row_norm=f32(norm),
        intercept=True,
    )


def opening_of_linear_regression(number):
    """An opening at axes that lengthen one column."""
    hyper = {name: f32(1) for name in ("precision", "shape", "scale", "unit")}
    model = LinearRegression(3, **hyper, normal=normal_prior(1, 1, 1), huber=Huber.at(2))
    rescaled = RescaledLinear(model, True, True, f32(1.3), f32(2), f32(100))
    params = rescaled.init() | {"axes": np.diag([8, 1, 1]).astype(f32)}
    return in_units_of_noise(rescaled.openings()[number], params)


class Scores:
    """A model whose scores are the records."""

    score_unit = 1.0

    def init(self):
        return jnp.zeros(3)

    def score_norm(self, params, record):
        return jnp.linalg.norm(record["x"])

    def score_sizes(self, params, record):
        return jnp.abs(record["x"])

    def score_moments(self, params, record):
        return Quadratic(jnp.ones((1, 1)), record["x"])


def opening_of_scores(coordinates):
    model = WithScoreUnit(Scores(), True, coordinates=coordinates)
    return in_units_of_noise(model.openings()[0], model.init())


def in_units_of_noise(opening, params):
    """Blocks of an opening's statistics, by what one standard deviation of their noise costs."""
    one = opening.statistics(params)

    def statistic(record):
        parts = one(record)
        return [
            block.share**0.5 / block.clipping_norm * full(parts[name])
            for name, block in opening.blocks.items()
        ]

    return statistic


def full(part):
    """A contribution as an array."""
    if not isinstance(part, Quadratic):
        return part
    return part.weight[0, 0] * jnp.outer(part.vector, part.vector)


def sizes(v):
    """Features and a response of every order of magnitude, and of either sign."""
    values = jnp.sign(v) * jnp.exp2(jnp.clip(12 * v, -40, 40))
    return {"x": jnp.append(values[:2], 1), "y": values[2]}


def logistic(classes):
    return LogisticRegression(3, classes, np.ones(3, f32))


def row(v):
    return {"x": within(v[:3], 1.3)}


def row_and_label(classes):
    return lambda v: (
        row(v) | {"y": jnp.clip(jnp.floor(v[3] * classes), -1, classes).astype(jnp.int32)}
    )


def dense(part):
    return jnp.outer(part.left, part.right)


def within(x, norm):
    return x * jnp.minimum(1, norm / jnp.maximum(jnp.sqrt(jnp.sum(x**2)), 1e-30))


def logistic_part(name, classes, substitution):
    """Response, or what is fitted at weights that are any: those come with the record, in search of the worst."""
    model = logistic(classes)
    bound, n_rows = model.parts_bound(1.3), model.n_rows
    if name == "response":
        return Case(
            lambda r: dense(model.response(r)), bound, substitution, 4, row_and_label(classes), 1.3
        )

    def fitted(record):
        return dense(model.fitted(record["w"], {"x": record["x"], "y": jnp.int32(0)}))

    def with_weights(v):
        return row(v) | {"w": 30 * v[3:].reshape(n_rows, 3)}

    return Case(fitted, bound, substitution, 3 + 3 * n_rows, with_weights, 1.3)


NET = SigmoidBeliefNet(3, 2, f32(1))
WEIGHTS = np.array([[1, -1], [0.5, 1], [-1, 0.3]], f32)


def belief_net(v):
    """A round: each block in units of its noise. Two images that are the other's negative are nearly opposite."""
    parts, blocks = (
        NET.statistics(NET.init()._replace(weights=WEIGHTS))({"y": v, "known": f32(1)}),
        NET.blocks(),
    )
    return [blocks[name].share ** 0.5 * dense(part) for name, part in parts.items()]


def image(v):
    return {"y": v, "known": f32(1)}


MODELS = {
    "belief network": Case(lambda record: belief_net(record["y"]), 1.0, 2.0, 3, image),
    # Rows of zeros and of ones, beside a constant of 0.4.
    "belief network: means": Case(
        NET.openings()[0].statistics(NET.init()), 1.0, 2 / math.hypot(1, 0.4), 3, image, 30.0
    ),
    "logistic: response": logistic_part("response", 2, 1.3),
    "logistic: fitted": logistic_part("fitted", 2, 1.3),
    "logistic: response of three classes": logistic_part("response", 3, 2 * 1.3 * math.sqrt(2 / 3)),
    "logistic: fitted of three classes": logistic_part("fitted", 3, 2 * 1.3 * math.sqrt(2 / 3)),
    "gamma-exponential": of_model(
        GammaExponential(3, f32(2), f32(3), f32(1.5)), 1.5 * math.sqrt(3), 3
    ),
    "beta-bernoulli": of_model(BetaBernoulli(5, f32(2), f32(5)), math.sqrt(5), 5),
    "dirichlet-categorical": of_model(DirichletCategorical(np.ones(4, f32)), math.sqrt(2), 1, code),
    # Two rows of norm R with responses 1 and -1 (or 1 and 1), at a cosine of 0.98 (-0.98).
    "linear regression": of_model(
        linear_sums(1.3), math.sqrt(2) * (1 + 1.4**2 / 2) * 1.3**2, 4, response, 1.3
    ),
}

MODELS |= {
    # Two records have the same count, and waves of twice a frequency are not opposite twice.
    "linear regression: waves": Case(opening_of_linear_regression(0), 1.0, 1.6, 3, sizes),
    "linear regression: moments": Case(
        opening_of_linear_regression(1), 1.0, math.sqrt(2), 4, response, 3.0
    ),
}
# Of records along two axes, in two bins of the histogram.
MODELS |= {
    f"scores of programs: {coordinates}": Case(
        opening_of_scores(coordinates), 1.0, math.sqrt(2), 3, lambda v: {"x": v}, 3.0
    )
    for coordinates in ("scaled", "whitened")
}


def product(v):
    z = jnp.append(within(v[:3], 1.3), jnp.clip(v[3], -0.7, 0.7))
    return jnp.outer(z, z)


def mixture(v):
    r, x = jax.nn.softmax(v[:2]), within(v[2:], 1)
    return r, jnp.outer(r, x), jnp.einsum("k,i,j->kij", r, x, x)


def topics(v):
    counts = jax.nn.softmax(v[:3])  # of three words, in 5 tokens
    return 5 * counts[:, None] * jax.nn.softmax(v[3:].reshape(3, 2), axis=1)


# Statistics whose bounds are known in closed form: a search that misses them would miss a model's.
KNOWN = {
    "products z z'": Case(
        product, 1.3**2 + 0.7**2, math.sqrt(2) * (1.3**2 + 0.7**2), 4, jnp.asarray
    ),
    "mixture": Case(mixture, math.sqrt(3), math.sqrt(6), 4, jnp.asarray, 3.0),
    "topics": Case(topics, 5.0, 5 * math.sqrt(2), 9, jnp.asarray, 5.0),
}
CASES = MODELS | KNOWN


@pytest.mark.parametrize("name", CASES)
def test_no_record_exceeds_the_bound_and_some_come_close(name):
    check(CASES[name])


@pytest.mark.parametrize("name", CASES)
def test_bounds_that_are_too_small_are_found_out(name):
    case = CASES[name]
    for part in ("bound", "substitution"):
        with pytest.raises(AssertionError, match="above"):
            check(dataclasses.replace(case, **{part: 0.95 * getattr(case, part)}))


def test_a_statistic_that_is_too_long_is_found_out():
    case = MODELS["linear regression"]
    longer = dataclasses.replace(case, statistic=lambda record: 1.05 * case.statistic(record))
    with pytest.raises(AssertionError, match="above"):
        check(longer)


def test_a_row_whose_length_is_not_bounded_is_found_out():
    unbounded = Case(lambda record: record["x"], 1.0, 2.0, 3, lambda v: {"x": v})
    with pytest.raises(AssertionError, match="above"):
        check(unbounded)
