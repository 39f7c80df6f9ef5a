"""Responses that stand for a law: few points, and their probabilities, by formulas alone.

Draws would need loops whose length depends on the record; points and densities do not.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jax.flatten_util import ravel_pytree
from numpyro.distributions import biject_to

_N = 41
_SINGLE = 12  # smallest counts that stand for themselves alone
_NEGLIGIBLE = 1e-9
_HARDLY = 1e-3  # probability of an interval about the least count
_FIRST, _LAST = 0.002, 0.86  # quantiles between which censored responses are told apart
# Steps that are short in the middle and reach far into the tails.
_STEPS = np.linspace(-6, 6, _N)
_LOCATED = (
    dist.Cauchy,
    dist.Gumbel,
    dist.Laplace,
    dist.Logistic,
    dist.Normal,
    dist.StudentT,
    dist.SoftLaplace,
)

_CATEGORICAL = (dist.CategoricalProbs, dist.CategoricalLogits)  # OrderedLogistic is one, too
_BINARY = (dist.BernoulliProbs, dist.BernoulliLogits)
_MOST_CATEGORIES = 200  # whose probabilities are computed for each record

CENSORED = (
    dist.LeftCensoredDistribution,
    dist.RightCensoredDistribution,
    dist.IntervalCensoredDistribution,
)


def n_responses(law: Any) -> int:
    """How many independent numbers have their points; 0 if `points` does not know the law.

    Each must have a mean and a variance, or a location.
    """
    law = by_number(law)
    return int(np.prod(law.batch_shape)) if _has_points(law) else 0


def by_number(law: Any) -> Any:
    """A law whose log probability is by number, where these are independent."""
    while isinstance(law, dist.Independent):
        law = law.base_dist
    return law


def _has_points(law):
    if law.event_shape:
        return False
    if isinstance(inner_law(law), dist.Unit | dist.Delta | dist.MaskedDistribution):
        return False
    if _is_finite(law):
        return len(law.enumerate_support(expand=False)) <= _MOST_CATEGORIES
    if isinstance(inner_law(law), CENSORED) or not (_counts(law.support) or _is_line(law.support)):
        return False
    if not _has_mean(inner_law(law)) and not isinstance(inner_law(law), _LOCATED):
        return False
    try:
        jax.eval_shape(_centre_and_spread, law)
    except NotImplementedError:
        return False
    return True


def inner_law(law: Any) -> Any:
    """A law without the wrappers that give it a shape."""
    while isinstance(law, dist.ExpandedDistribution | dist.Independent):
        law = law.base_dist
    return law


def is_categorical(law: Any) -> bool:
    """Whether its values are numbers of categories, of which NumPyro knows no mean."""
    return isinstance(inner_law(law), _CATEGORICAL)


def is_binary(law: Any) -> bool:
    """Whether its values are 0 and 1."""
    return isinstance(inner_law(law), _BINARY)


def _is_finite(law):
    return is_categorical(law) or is_binary(law)


def _has_mean(law):
    """Whether NumPyro gives a mean. It is NaN for some laws, whatever their parameters."""
    if isinstance(law, dist.MixtureSameFamily):
        return _has_mean(inner_law(law.component_distribution))
    try:
        with jax.ensure_compile_time_eval():
            mean = law.mean
    except NotImplementedError:
        return False
    return isinstance(mean, jax.core.Tracer) or not np.isnan(mean).all()


def is_censored(law: Any) -> bool:
    """Whether it is one number, observed from the right end of its range up to `censored`."""
    inner = inner_law(law)
    return isinstance(inner, dist.RightCensoredDistribution) and n_responses(inner.base_dist) == 1


def cut_short(law: Any, value: jax.Array) -> tuple[Any, jax.Array]:
    """Law and value of a censored response that is censored at a late point at the latest.

    The point follows from the law, not from the response. So the score still has mean zero, and it
    is bounded: it depends on the response before that point alone.
    """
    inner = inner_law(law)
    y, shares = _points_of_one(inner.base_dist)
    last = jnp.max(jnp.where(_early(y, shares), y, -jnp.inf))
    cut = dist.RightCensoredDistribution(inner.base_dist, inner.censored | (value > last))
    return cut, jnp.minimum(value, last)


def possible_scores(law: Any) -> jax.Array:
    """Scores, in the numbers of its law, that a censored response might have, (n, k)."""
    eta, law_of = parted(inner_law(law).base_dist)
    y, shares = _points_of_one(law_of(eta))
    early = _early(y, shares)

    def log_density(eta: jax.Array, y: jax.Array, censored: bool) -> jax.Array:
        return jnp.sum(dist.RightCensoredDistribution(law_of(eta), censored).log_prob(y))

    each = jax.vmap(jax.grad(log_density), (None, 0, None))
    scores = jnp.concatenate([each(eta, y, censored) for censored in (False, True)])
    return jnp.where(jnp.concatenate([early, early])[:, None], scores, 0)


def _points_of_one(law):
    y, shares = points(law)
    return y[:, 0], shares[:, 0]


def _early(y, shares):
    """Points between which nearly all of a law lies, without the late ones."""
    below = jnp.sum(jnp.where(y[None] <= y[:, None], shares, 0), axis=1)
    return (below > _FIRST) & (below < _LAST)


def parted(law: Any) -> tuple[jax.Array, Callable[[jax.Array], Any]]:
    """Numbers that a law depends on, as a vector, and the law as a function of them."""
    leaves, treedef = jax.tree.flatten(law)
    kept = [i for i, x in enumerate(leaves) if jnp.result_type(x) == jnp.float32]
    eta, of_eta = ravel_pytree([jnp.asarray(leaves[i], jnp.float32) for i in kept])

    def law_of(eta: jax.Array) -> Any:
        parts = list(leaves)
        for i, part in zip(kept, of_eta(eta), strict=True):
            parts[i] = part
        return jax.tree.unflatten(treedef, parts)

    return eta, law_of


def points(law: Any) -> tuple[jax.Array, jax.Array]:
    """Responses (n, R) and their probabilities (n, R), of sum one for each of R numbers.

    Gradients stop here.
    """
    law = by_number(law)
    shape = law.batch_shape
    if _is_finite(law):
        values = jnp.ravel(law.enumerate_support(expand=False))
        y = jnp.broadcast_to(_along(values, shape), (len(values), *shape))
        shares = jax.nn.softmax(jax.vmap(law.log_prob)(y), axis=0)
    else:
        y, shares = _points(law)
    return jax.lax.stop_gradient((y.reshape(len(y), -1), shares.reshape(len(y), -1)))


def _points(law):
    centre, spread = _centre_and_spread(law)
    if _counts(law.support):
        y, log_step = _counted(law, centre, spread)
    else:
        steps = _along(_STEPS, law.batch_shape)
        free, log_step = centre + spread * np.sinh(steps), jnp.asarray(np.log(np.cosh(steps)))
        transform = biject_to(law.support)
        y = transform(free)
        log_step = log_step + transform.log_abs_det_jacobian(free, y)
    y = y.astype(jnp.float32)
    log = jax.vmap(law.log_prob)(y) + log_step
    # NaN outside of the support; infinite at the ends of some, such as Beta(1/2, 1/2).
    shares = jax.nn.softmax(jnp.where(log < jnp.inf, log, -jnp.inf), axis=0)
    # Far out, densities and their slopes may overflow: such points go where most of the law is.
    far = shares < _NEGLIGIBLE
    most = jnp.take_along_axis(y, jnp.argmax(shares, axis=0, keepdims=True), axis=0)
    return jnp.where(far, most, y), jnp.where(far, 0, shares)


def _along(x, shape):
    """A vector along the first axis, before axes of a shape."""
    return x.reshape(-1, *(1 for _ in shape))


def _centre_and_spread(law):
    """Of the response on the whole line: of a count itself, of a positive number its logarithm."""
    inner, shape = inner_law(law), law.batch_shape
    if isinstance(inner, _LOCATED):
        return jnp.broadcast_to(inner.loc, shape), jnp.broadcast_to(inner.scale, shape)
    mean, variance = (jnp.broadcast_to(x, shape) for x in (law.mean, law.variance))
    if _counts(law.support):
        return mean, jnp.sqrt(variance)
    transform = biject_to(law.support)
    centre = transform.inv(mean)
    return centre, jnp.sqrt(variance) * jnp.exp(-transform.log_abs_det_jacobian(centre, mean))


def _counted(law, centre, spread):
    """Whole numbers, and the logarithm of how many each stands for.

    All from the least one on if these suffice; equally spaced ones if the least has hardly any
    probability; else the smallest ones, and the middles of intervals that grow in proportion.
    """
    least, shape = law.support.lower_bound, law.batch_shape
    each, rest = _along(jnp.arange(_N), shape), _N - _SINGLE
    step = jnp.maximum(jnp.ceil(12 * spread / _N), 1)
    first = jnp.maximum(jnp.floor(centre - _N // 2 * step), least)
    most = jnp.maximum((centre + 12 * spread - least) / _SINGLE, 2 * _N / _SINGLE)
    tail = jnp.round(_SINGLE * most ** _along(np.arange(rest + 1) / rest, shape))
    single = jnp.broadcast_to(each[:_SINGLE], (_SINGLE, *shape))
    ends = jnp.concatenate([single, tail])
    many = jnp.diff(ends, axis=0)
    middles = least + ends[:-1] + (many - 1) // 2
    few = centre + 8 * spread < least + _N
    of_least = law.log_prob(jnp.broadcast_to(jnp.float32(least), shape))
    even = step * jnp.exp(of_least) < _HARDLY
    y = jnp.where(even, first + step * each, middles)
    return jnp.where(few, least + each, y), jnp.where(few | even, 0, jnp.log(many))


def _counts(support):
    return support.is_discrete and hasattr(support, "lower_bound")


def _is_line(support):
    """Whether numbers of this support map to the whole line."""
    if support.is_discrete or support.event_dim:
        return False
    try:
        biject_to(support)
    except (NotImplementedError, KeyError):
        return False
    return True
