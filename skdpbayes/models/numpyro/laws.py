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
_MOST_CATEGORIES = 200  # whose probabilities are computed for each record

_CENSORED = (
    dist.LeftCensoredDistribution,
    dist.RightCensoredDistribution,
    dist.IntervalCensoredDistribution,
)


def has_points(law: Any) -> bool:
    """Whether `points` knows the law: of one number, with a mean and a variance or a location."""
    if law.event_shape or int(np.prod(law.batch_shape)) != 1:
        return False
    if isinstance(inner_law(law), dist.Unit | dist.Delta | dist.MaskedDistribution):
        return False
    if is_categorical(law):
        return len(law.enumerate_support(expand=False)) <= _MOST_CATEGORIES
    if isinstance(inner_law(law), _CENSORED) or not (_counts(law.support) or _is_line(law.support)):
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
    return isinstance(inner, dist.RightCensoredDistribution) and has_points(inner.base_dist)


def cut_short(law: Any, value: jax.Array) -> tuple[Any, jax.Array]:
    """Law and value of a censored response that is censored at a late point at the latest.

    The point follows from the law, not from the response. So the score still has mean zero, and it
    is bounded: it depends on the response before that point alone.
    """
    inner = inner_law(law)
    y, shares = points(inner.base_dist)
    last = jnp.max(jnp.where(_early(y, shares), y, -jnp.inf))
    cut = dist.RightCensoredDistribution(inner.base_dist, inner.censored | (value > last))
    return cut, jnp.minimum(value, last)


def possible_scores(law: Any) -> jax.Array:
    """Scores, in the numbers of its law, that a censored response might have, (n, k)."""
    eta, law_of = parted(inner_law(law).base_dist)
    y, shares = points(law_of(eta))
    early = _early(y, shares)

    def log_density(eta: jax.Array, y: jax.Array, censored: bool) -> jax.Array:
        return jnp.sum(dist.RightCensoredDistribution(law_of(eta), censored).log_prob(y))

    each = jax.vmap(jax.grad(log_density), (None, 0, None))
    scores = jnp.concatenate([each(eta, y, censored) for censored in (False, True)])
    return jnp.where(jnp.concatenate([early, early])[:, None], scores, 0)


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
    """Responses (n,) and their probabilities (n,), of sum one; gradients stop here."""
    if is_categorical(law):
        y = jnp.ravel(law.enumerate_support(expand=False))
        log = jax.vmap(lambda value: jnp.sum(law.log_prob(value)))(y)
        return jax.lax.stop_gradient((y, jax.nn.softmax(log)))
    centre, spread = _centre_and_spread(law)
    if _counts(law.support):
        y, log_step = _counted(law, centre, spread)
    else:
        free, log_step = centre + spread * np.sinh(_STEPS), jnp.asarray(np.log(np.cosh(_STEPS)))
        transform = biject_to(law.support)
        y = transform(free)
        log_step = log_step + transform.log_abs_det_jacobian(free, y)
    y = y.astype(jnp.float32)
    log = jax.vmap(lambda value: jnp.sum(law.log_prob(value)))(y) + log_step
    # NaN outside of the support; infinite at the ends of some, such as Beta(1/2, 1/2).
    shares = jax.nn.softmax(jnp.where(log < jnp.inf, log, -jnp.inf))
    # Far out, densities and their slopes may overflow: such points go where most of the law is.
    far = shares < _NEGLIGIBLE
    y = jnp.where(far, y[jnp.argmax(shares)], y)
    return jax.lax.stop_gradient((y, jnp.where(far, 0, shares)))


def _centre_and_spread(law):
    """Of the response on the whole line: of a count itself, of a positive number its logarithm."""
    inner = inner_law(law)
    if isinstance(inner, _LOCATED):
        return jnp.squeeze(inner.loc), jnp.squeeze(inner.scale)
    mean, variance = jnp.squeeze(law.mean), jnp.squeeze(law.variance)
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
    least = law.support.lower_bound
    all_ = least + jnp.arange(_N)
    step = jnp.maximum(jnp.ceil(12 * spread / _N), 1)
    first = jnp.maximum(jnp.floor(centre - _N // 2 * step), least)
    rest = _N - _SINGLE
    most = jnp.maximum((centre + 12 * spread - least) / _SINGLE, 2 * _N / _SINGLE)
    tail = jnp.round(_SINGLE * most ** (np.arange(rest + 1) / rest))
    ends = jnp.concatenate([jnp.arange(_SINGLE), tail])
    many = jnp.diff(ends)
    middles = least + ends[:-1] + (many - 1) // 2
    few = centre + 8 * spread < least + _N
    even = step * jnp.exp(jnp.sum(law.log_prob(jnp.float32(least)))) < _HARDLY
    y = jnp.where(even, first + step * jnp.arange(_N), middles)
    return jnp.where(few, all_, y), jnp.where(few | even, 0, jnp.log(many))


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
