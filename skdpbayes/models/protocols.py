"""Optional members of a model, one protocol each, for solvers to ask about with `isinstance`.

Every model is a `skdpbayes.models.base.Model`. A member declared here adds a closed form, a bound
or a prior of known form. Each protocol is checked in one place, the function that uses the member,
which says what happens without it; most of these functions are in `skdpbayes.models.base`.

Members must be found on the object or its class. A wrapper whose ``__getattr__`` forwards to
another model has none of them, since Python 3.12 does not look there.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol, TypeAlias, runtime_checkable

import jax
import numpy as np

from skdpbayes.posteriors.base import Posterior
from skdpbayes.posteriors.evidence import NormalLikelihood

Params: TypeAlias = Any
"""A pytree of float32 arrays, whose structure is the model's own."""

Record: TypeAlias = Mapping[str, Any]
"""One record: arrays by field."""

Contribution: TypeAlias = Any
"""What one record adds to a sum: an array, `RankOne`, `Quadratic`, `Scattered`, or a pytree."""

Array: TypeAlias = jax.Array | np.ndarray
"""An array of public numbers, traced by the compiled loop."""

Number: TypeAlias = jax.Array | np.floating | np.integer | float
"""A public number, traced by the compiled loop."""


@runtime_checkable
class HasScore(Protocol):
    """Closed form of the score, which may be a structured contribution."""

    def score(self, params: Params, record: Record) -> Contribution:
        """Gradient of one record's log-likelihood, of the structure of `params`."""


@runtime_checkable
class HasCurvature(Protocol):
    """Closed form of the curvature, which may be a structured contribution."""

    def curvature(self, params: Params, record: Record) -> Contribution:
        """Negative Hessian of one record's log-likelihood, (P, P) over the ravelled parameters."""


@runtime_checkable
class HasScoreBound(Protocol):
    """Bound on a record's score that does not depend on its response.

    Weights computed from it leave the expected score zero at the truth (conditionally unbiased
    estimating equations: Künsch, Stefanski and Carroll 1989).
    """

    def score_bound(self, params: Params, record: Record) -> jax.Array:
        """Upper bound on the norm of the score, a scalar."""


@runtime_checkable
class HasLargestWeight(Protocol):
    """Bound on the weight of a record that is larger than public bounds assume."""

    def largest_weight(self, record: Record) -> jax.Array:
        """Most that the record may weigh, in (0, 1]; independent of its response."""


@runtime_checkable
class HasScoreUnit(Protocol):
    """Unit of the score: clipping norms are relative to it."""

    @property
    def score_unit(self) -> Number:
        """Norm of a typical score, found by a private release."""


@runtime_checkable
class HasCurvatureUnit(Protocol):
    """Unit of curvatures, where it is not the square of `score_unit`."""

    @property
    def curvature_unit(self) -> Number:
        """Its root."""


@runtime_checkable
class HasScoreScale(Protocol):
    """Public prediction of how the length of scores depends on the parameters."""

    def score_scale(self, params: Params) -> jax.Array:
        """Length of a typical score at `params`, over that at `init`."""


@runtime_checkable
class HasClippingBias(Protocol):
    """Expected effect of clipping on the sum of all scores (Fisher consistency)."""

    def clipping_bias(self, params: Params, norm: jax.Array) -> Params:
        """Expected sum of clipped minus unclipped scores, of the structure of `params`."""


@runtime_checkable
class HasNormalPrior(Protocol):
    """Independent normal prior, or a normal approximation of the prior."""

    def prior_precision(self) -> Params:
        """Diagonal of the prior precision (for Student t priors, inverse squared scales).

        For another prior: the curvature of its logarithm at `init`.
        """


@runtime_checkable
class HasPriorMean(Protocol):
    """Normal prior whose mean is not the starting point."""

    def prior_mean(self) -> Params:
        """Mean of the normal prior.

        For another prior: the mean that gives the normal approximation the prior's slope at `init`.
        """


@runtime_checkable
class HasPriorDegrees(Protocol):
    """Student t priors, independent, with the inverse squared scales of `prior_precision`."""

    def prior_degrees(self) -> Params | None:
        """Degrees of freedom of each parameter's prior; None: all are normal."""


@runtime_checkable
class HasCommonScale(Protocol):
    """Student t priors, some of them with a common scale factor."""

    def prior_common_scale(self) -> Params | None:
        """One for each parameter whose prior has the factor, else zero; None if no prior has."""


@runtime_checkable
class HasPriorAxes(Protocol):
    """Parameters that are linear coordinates of those that have the independent prior."""

    def prior_axes(self) -> jax.Array | None:
        """Matrix A, (P, P): ``A t`` has the prior of `prior_precision` and mean zero.

        None: the identity.
        """


@runtime_checkable
class HasHyperPrior(Protocol):
    """Normal prior given hyper-parameters, which are integrated over at the end.

    `prior_axes` and bounds on the parameters have these fixed.
    """

    def expected_precision(self, mean: jax.Array, covariance: jax.Array) -> jax.Array:
        """Prior precision, (P, P), averaged over the hyper-parameters' distribution.

        That is the one of mean field variational Bayes, given mean and covariance of the ravelled
        parameters.
        """

    def integrated(self, likelihood: NormalLikelihood) -> Posterior:
        """Posterior in the model's own parameters, given the likelihood of the ravelled ones."""


@runtime_checkable
class HasRandomStart(Protocol):
    """Model that cannot start at `init`: every chain starts at a draw."""

    def start(self, key: jax.Array) -> Params:
        """Draw of the starting point, from public values alone."""


@runtime_checkable
class HasLatentNoise(Protocol):
    """Model whose log-likelihood is estimated with a draw of its latent variables."""

    def drawn(self, key: jax.Array) -> Any:
        """The model with the latent noise of one round fixed."""


@runtime_checkable
class HasPrecondition(Protocol):
    """Score and curvature given up to public factors that depend on the parameters alone.

    The mechanism then clips quantities of constant scale.
    """

    def precondition(self, params: Params) -> Params:
        """Factors of `score`, and of the rows and columns of `curvature`."""


@runtime_checkable
class HasWorkingPoint(Protocol):
    """Choice of the point at which scores are released while the parameters are uncertain."""

    def working_point(
        self, params: jax.Array, curvature: jax.Array, covariance: jax.Array
    ) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Point, factors of the score's slopes, and extra variance of the score, each (P,).

        Parameters
        ----------
        params : array of shape (P,)
            Posterior mean of the ravelled parameters.
        curvature, covariance : arrays of shape (P, P)
            Summed over records, without the factors of `precondition`; of the parameters.
        """

    def mean_slopes(self, params: jax.Array, points: jax.Array) -> jax.Array:
        """Mean slopes of scores between each of `points`, (n, P), and `params`, (P,).

        As factors of the curvature, of shape (n, P): 1 where scores are linear.
        """

    def longest_step(self) -> jax.Array:
        """Largest change of each parameter in a round, (P,)."""


@runtime_checkable
class HasParameterBlocks(Protocol):
    """Blocks of parameters that the curvature does not relate."""

    def parameter_blocks(self) -> tuple[slice, ...]:
        """Slices of the ravelled parameters between which the curvature is zero."""


@runtime_checkable
class HasIdentified(Protocol):
    """Likelihood that is constant along some directions."""

    def identified(self) -> Array | None:
        """Orthonormal basis of the others, of shape (P, n), n < P; None: there are no such."""


@runtime_checkable
class HasInformation(Protocol):
    """Model of whole records, which predicts the curvature: no curvature is released."""

    def information(self, params: Params, norm: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Expected curvature and covariance of the sum of all scores clipped to `norm`, (P, P)."""


@runtime_checkable
class HasStartVariance(Protocol):
    """Starting point that is itself an estimate, in coordinates of unit size."""

    def start_variance(self) -> Params:
        """Variance of `init` as an estimate of the parameters."""


@runtime_checkable
class HasSamplingRate(Protocol):
    """Model whose start depends on how many of the records are sampled."""

    def at_rate(self, sampling_rate: float) -> Any:
        """The model, for releases of that sampling rate."""


class Response(NamedTuple):
    """Responses of a record, and those that it might have had, independent given the rest of it.

    Attributes
    ----------
    slope : array of shape (k, P)
        Of the k parameters of their laws in the P ravelled parameters of the model.
    own : array of shape (R, k)
        Scores of the R responses in the parameters of the laws.
    others : array of shape (R, n, k)
        The same for n values that stand for each law.
    shares : array of shape (R, n)
        Their probabilities, of sum one for each response.
    """

    slope: jax.Array
    own: jax.Array
    others: jax.Array
    shares: jax.Array


@runtime_checkable
class HasResponse(Protocol):
    """Records with responses whose laws given the rest of the record are known."""

    @property
    def known_responses(self) -> bool:
        """Whether this model is one of them."""

    def response(self, params: Params, record: Record) -> Response:
        """A record's responses, and those that it might have had."""
