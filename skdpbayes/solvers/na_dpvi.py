"""Noise-aware inference: a normal posterior from private scores and a private curvature.

Every release of summed scores is an observation of the optimum ``t*`` of the (weighted)
log-likelihood,

    g_t = H (t* - theta_t) + N(0, R_t),

linear in t* as far as the scores are (NA-DPVI, Alrawajfeh, Jalko and Honkela 2025, equation 20,
with the prior outside). Weighted averages of scores g and points theta have the same form,
``mean g = H (t* - mean theta) + noise``. With ``omega H`` the sampling covariance of the summed
scores (omega: `sampling_weight`) and nu the variance of the averaged noise,

    mean g + H mean theta = H theta + N(0, omega H + nu I),

which is combined with the prior (`_given`): the usual posterior where nu is small, the prior where
it is large. The next score is released at the posterior mean; there is no learning rate. As it
nears t*, errors of H matter less and less.

For logistic regression simulated rows correct the steps and the result (`simulated_rows`). Where
noise is large, its scores are released at smaller logits, which clipped rows tell more about. The
last round releases the score of the logits' scale alone (`closing`).

Where we differ: the paper runs NUTS over the stored trace for t*, a diagonal H and the variance.

* H is the full curvature, released privately in some rounds or predicted by the model.
* Averages of scores and points replace the trace: they determine t* as well.
* A release's weight in the averages follows from its variance: the privacy noise, of known
  variance; subsampling; and the non-linearity of the scores. Scores released far from the present
  estimate lose weight again (`_combined`), for which averages are kept by blocks of rounds. Where
  the model has a `working_point` scores are linear in expectation; where it knows its responses,
  nearly all scores are clipped far from the optimum, and hardly change on the way. There an
  outlying release loses weight, and the earlier ones with it (`_trust`).

H enters by denoised estimates of its spectrum: during the run an upper one, which keeps steps short
(`cautious_curvature`), and at the end the best one (`estimated_curvature`). Derivations and
measurements: ``docs/solvers/na-dpvi.md``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jax.scipy.linalg import block_diag
from jax.stages import Lowered

from skdpbayes.compilation import LITTLE_EFFORT
from skdpbayes.mechanism.spec import Block, Mechanism
from skdpbayes.models.base import (
    Model,
    curvature_unit,
    double,
    flat_start,
    identified,
    parameter_blocks,
    prior_axes,
    prior_matrix,
    prior_variance,
    score_scale,
    score_unit,
    single,
    unbiased_total,
    weighted_score,
)
from skdpbayes.models.denoising import (
    cautious_curvature,
    estimated_curvature,
    possible_eigenvalues,
)
from skdpbayes.models.normal_rows import NormalRows
from skdpbayes.models.protocols import (
    HasInformation,
    HasPrecondition,
    HasScoreUnit,
    HasStartVariance,
    HasWorkingPoint,
    Number,
)
from skdpbayes.models.responses import knows_responses
from skdpbayes.models.whitened import InCoordinates
from skdpbayes.posteriors.base import GaussianPosterior
from skdpbayes.posteriors.evidence import NormalLikelihood
from skdpbayes.pytrees import pytree
from skdpbayes.solvers.averages import Averages, average, doubted, over
from skdpbayes.solvers.base import Query, Round, Scales, Sums, arithmetic
from skdpbayes.solvers.closing import Closing, closing_round
from skdpbayes.solvers.normal_posterior import (
    REACH,
    averaged_given,
    averages_over_scales,
    gained,
    normal_given,
    within_reach,
)
from skdpbayes.solvers.released_curvature import (
    Curvature,
    Foreseen,
    curvature_blocks,
    curvature_round,
    sampling_covariance,
    sampling_weight,
    with_sum,
)
from skdpbayes.solvers.simulated_rows import (
    Found,
    Likelihood,
    Start,
    found_with,
    likeness_of,
    step_curvature,
)
from skdpbayes.solvers.sums_of_persons import kept_of_sums

_BLOCKS = 32  # of rounds, over which averages are kept
_LATE = 28  # block from which on a run should have arrived: after 77% of the rounds
_TINY = 1e-7  # curvature where none is known, in units of the prior precision
_DOUBTFUL_BELOW = 0.25  # of the median eigenvalue
_BENT = 0.3  # of what a score differs from a straight line by, the part that is not known
_POSSIBLE = 16  # curvatures over which a posterior covariance is averaged
_UNEQUAL = 0.5  # standard deviation of eigenvalues of the curvature, over their mean
_ROOM = 0.7  # norm of a row of a person, over that of a lone row


class TraceState(NamedTuple):
    """State; every entry is a function of the releases, the solver key and public values."""

    theta: jax.Array  # posterior mean of the parameters
    covariance: jax.Array  # their posterior covariance
    blocks: Averages
    known: Curvature  # average of the releases, or the model's prediction
    curvature: jax.Array  # denoised, for use during the run
    spread: jax.Array | None = None  # sampling covariance of the summed scores, if predicted
    closing: Closing | None = None  # score of the logits' scale, if it is released

    @property
    def centre(self) -> jax.Array:
        """Present estimate of the parameters."""
        return self.theta


class View(NamedTuple):
    """Where a score is released, and what the model declares about it."""

    point: jax.Array
    factors: jax.Array  # public factors of the score
    unclear: jax.Array  # extra covariance of the score over its factors


@pytree
@dataclass(frozen=True)
class NADPVI:
    """Bayesian inference from private scores and curvatures.

    Attributes
    ----------
    clipping_norm, curvature_norm : float
        Clipping norms of a record's weighted score, over the model's `score_unit`, and of its
        weighted curvature, over the square of the model's `curvature_unit`.
    curvature_every : int
        Period of the curvature rounds.
    n_persons : int, optional
        Public number of records, where each may have several rows: their sums of scores are
        clipped (`kept_of_sums`). None: no correction.
    simulated : NormalRows, optional
        Rows that correct steps and posterior (`simulated_rows`); None: no correction.
    logit_shrinkage : float
        Shrinkage of the logits at which scores are released, per unit of their posterior variance
        (`InCoordinates.with_shrunk_logits`), where rows are simulated.
    closes_at : int, optional
        Round, the last, that releases the score of the logits' scale (`closing`); negative: none
        does. None, or without simulated rows: nor is there such a score.
    """

    clipping_norm: Number
    curvature_norm: Number
    curvature_every: Number = 10
    n_persons: Number | None = None
    simulated: NormalRows | None = None
    logit_shrinkage: Number = 0.0
    closes_at: Number | None = None

    def init(self, model: Model, key: jax.Array) -> TraceState:
        """The prior."""
        del key
        theta = flat_start(model)[0].astype(jnp.float64)
        nothing = jnp.zeros((_BLOCKS, theta.size))
        state = TraceState(
            theta=theta,
            covariance=jnp.linalg.inv(prior_matrix(model)),
            blocks=Averages(nothing, nothing, nothing, nothing, nothing[:, 0]),
            known=Curvature.none(
                theta.size, foreseen=self.simulated is not None, scores=_has_any_parameters(model)
            ),
            curvature=jnp.zeros((theta.size, theta.size)),
            closing=Closing.none(theta.size) if self._may_close else None,
        )
        return _informed(model, state, self.clipping_norm)

    def which(self, step: jax.Array) -> jax.Array:
        """Index of the kind of round: curvature first, and more often while it changes much."""
        early = (step < self.curvature_every) & (step % 3 == 0)
        kind = ((step % self.curvature_every == 0) | early).astype(jnp.int32)
        return jnp.where(step == self.closes_at, 2, kind) if self._may_close else kind

    @property
    def _may_close(self) -> bool:
        return self.closes_at is not None and self.simulated is not None

    def rounds(self, model: Model, mechanism: Mechanism) -> tuple[Round[TraceState], ...]:
        """A score round, a curvature round, and the one that closes the run."""
        unravel = flat_start(model)[1]
        of_scores, of_curvatures = score_unit(model), curvature_unit(model)

        def scale(state: TraceState) -> jax.Array:
            return score_scale(model, unravel(state.theta.astype(jnp.float32)))

        def norm(state: TraceState) -> jax.Array:
            return self.clipping_norm * of_scores * scale(state)

        # Where scores are as long as the norm as a rule, sums of shorter ones are rarely clipped.
        room = _ROOM if mechanism.several_rows and knows_responses(model) else 1

        def row_norm(state: TraceState) -> jax.Array:
            return room * norm(state)

        def curvature_norm(state: TraceState) -> jax.Array:
            return self.curvature_norm * (of_curvatures * scale(state)) ** 2

        def ask_score(state: TraceState, key: jax.Array) -> tuple[jax.Array, View]:
            del key
            view = self._view(model, state)
            return view.point.astype(jnp.float32), view

        def score_of(state: TraceState, point: tuple[jax.Array, View]) -> Query:
            theta, clip = unravel(point[0]), row_norm(state)
            return lambda record: {"score": weighted_score(model, theta, record, clip)[0]}

        def learn_score(
            state: TraceState,
            point: tuple[jax.Array, View],
            step: jax.Array,
            estimate: Sums,
            scales: Scales,
        ) -> TraceState:
            view, clip = point[1], row_norm(state)
            factors = view.factors * self._kept(model, mechanism, state, norm(state))
            score = unbiased_total(model, unravel(point[0]), estimate["score"], clip) / factors
            noise = (scales["score"] / factors) ** 2
            subsampled = 1 / mechanism.rate - 1
            # The small number is for runs without any noise.
            unclear = view.unclear + _sampling(
                model, state, _asked(model, state), subsampled + 1e-6
            )
            keep = _trust(model, state, score, noise, unclear)
            # Blocks are short at first, when points move most.
            done = step.astype(score.dtype) / jnp.maximum(mechanism.n_steps, 1)
            at = jnp.minimum(_BLOCKS * jnp.sqrt(done), _BLOCKS - 1).astype(jnp.int32)
            # A working point stands for the present parameters.
            about = state.theta if isinstance(model, HasWorkingPoint) else view.point
            state = _averaged(model, state, at, score, about, noise, unclear, keep, subsampled)
            # A noisy estimate that is far off would cost the scores before it their weights.
            most = model.longest_step() if isinstance(model, HasWorkingPoint) else jnp.inf
            low, high = state.theta - most, state.theta + most
            for _ in range(2):  # weights depend on the estimate
                theta, precision = _given(model, state, _asked(model, state), view.unclear)
                theta = jnp.clip(theta, low, high)
                # Where scores are far from linear, a step could leave the region where they are
                # informative.
                state = state._replace(
                    theta=within_reach(model, theta, REACH),
                    covariance=jnp.linalg.inv(precision),
                )
            return _informed(model, state, clip)

        def learn_curvature(
            state: TraceState, point: jax.Array, step: jax.Array, estimate: Sums, scales: Scales
        ) -> TraceState:
            del step
            if self.simulated is None:
                known = state.known.after(estimate, scales, mechanism)
                return state._replace(
                    known=known, curvature=_denoised(cautious_curvature, model, known)
                )
            rows, at, clip = self.simulated.of(model), unravel(point), row_norm(state)
            blocks = curvature_blocks(curvature_norm(state), clip, mechanism.several_rows)
            # Last bits of sums in double precision differ between one device and many.
            foreseen = single(
                Foreseen(
                    rows.curvature(at, clip, blocks["curvature"].clipping_norm),
                    rows.variances(at, clip, blocks["variances"].clipping_norm),
                    rows.curvature(at, clip),
                )
            )
            estimate = {**estimate, "curvature": _in_blocks(model, estimate["curvature"])}
            known = state.known.after(estimate, scales, mechanism, foreseen)
            alone = _denoised(cautious_curvature, model, known)
            h = step_curvature(model, known, alone)
            return state._replace(known=known, curvature=double(single(h)))

        def scores(state: TraceState) -> Mapping[str, Block]:
            return {"score": Block(norm(state), together="score")}

        asked = Round(ask_score, score_of, scores, learn_score)
        if isinstance(model, HasInformation):
            return (asked,)
        last: tuple[Round[TraceState], ...] = ()
        if self._may_close:
            assert isinstance(model, InCoordinates) and self.simulated is not None
            closing = closing_round(
                model,
                mechanism,
                self.simulated.of(model),
                self.clipping_norm,
                self.n_persons,
                point=lambda state: self._view(model, state).point,
                update=lambda state, closing: state._replace(closing=closing),
            )
            last = (closing,)
        return (
            asked,
            curvature_round(
                model,
                mechanism,
                point=lambda state, key: state.theta.astype(jnp.float32),
                params=unravel,
                clip=row_norm,
                norm=curvature_norm,
                update=learn_curvature,
                correlated=_has_any_parameters(model),
            ),
            *last,
        )

    def _kept(
        self, model: Model, mechanism: Mechanism, state: TraceState, norm: jax.Array
    ) -> jax.Array:
        """Share that persons' sums of scores keep of their slopes."""
        if self.n_persons is None:
            return jnp.ones(())
        covariance = _sampled(model, state, _asked(model, state))
        longest = mechanism.norm_of_record(norm, "score")
        return kept_of_sums(covariance / self.n_persons, longest)

    def _view(self, model: Model, state: TraceState) -> View:
        """As `_look`; logits vary less, as far as simulated rows are like the records."""
        view = _look(model, state)
        if self.simulated is None:
            return view
        assert isinstance(model, InCoordinates)  # as `NormalRows.of` says
        shrinkage = self.logit_shrinkage * likeness_of(model, state.known).alike ** 2
        point = model.with_shrunk_logits(state.theta, state.covariance, shrinkage)
        return view._replace(point=double(single(point)))  # as the query has it

    def posterior(self, model: Model, state: TraceState) -> GaussianPosterior:
        """Normal posterior."""
        found = self._found(model, state)
        return GaussianPosterior.from_precision(found.mean, found.precision)

    def quiet(self, state: TraceState) -> TraceState:
        """State whose posterior leaves out the privacy noise of the scores.

        Curvature and coordinates are those released.
        """
        closing = state.closing
        return state._replace(
            blocks=state.blocks._replace(noise=0 * state.blocks.noise),
            closing=None if closing is None else closing._replace(noise=0 * closing.noise),
        )

    def without_noise(self, model: Model, state: TraceState) -> GaussianPosterior:
        """Posterior of the `quiet` state."""
        return self.posterior(model, self.quiet(state))

    def posterior_and_likelihood(
        self, model: Model, state: TraceState
    ) -> tuple[GaussianPosterior, NormalLikelihood]:
        """The posterior, and the likelihood of the parameters given all releases.

        Scores were released at points that depend on the prior of the fit: it is quadratic about
        them.
        """
        found = self._found(model, state)
        posterior = GaussianPosterior.from_precision(found.mean, found.precision)
        with arithmetic():
            scales = np.sqrt(np.asarray(prior_variance(model)))
        information, linear, reported = found.likelihood
        return posterior, NormalLikelihood(
            information,
            linear,
            reported,
            found.mean,
            averaged=None if self.simulated is None else found.alike * posterior.std**2,
            believed=float(found.alike),
            by_factor=found.by_factor,
            scales=scales,
        )

    def found(self, model: Model, state: TraceState) -> Found:
        """Posterior and likelihood, to be traced.

        The mean is that of the last round, unless rows are simulated or a common scale of the
        prior is averaged over. A mean by the final estimate of the curvature would follow the
        noise: it takes whole steps in directions of little curvature, where errors of the other
        coefficients show.
        """
        asked, estimated = _asked(model, state), _estimated(model, state)
        if self.simulated is not None:
            rows = self.simulated.of(model)
            start = Start(state.theta, state.covariance, asked, estimated)
            return found_with(
                model, rows, self.clipping_norm, start, state.blocks, state.known, state.closing
            )
        unclear = _look(model, state).unclear

        def under(h: jax.Array) -> tuple[jax.Array, jax.Array]:
            """Information and precision, if this were the curvature."""
            learnt = _learnt(model, state, h, unclear)
            precision = normal_given(model, *learnt, (state.theta, state.covariance))[1]
            return learnt[0], precision

        information, linear = _learnt(model, state, asked, unclear)
        if _unlike(model):
            # Of covariances the mean counts: where an eigenvalue may be small, it is large.
            each, precisions = jax.lax.map(under, _possible(state, estimated))
            likelihood = Likelihood(information, linear, each[0])
            precision = jnp.linalg.inv(jnp.mean(jnp.linalg.inv(precisions[1:]), axis=0))
            return Found(state.theta, precision, likelihood, jnp.ones(()))
        own, precision = under(estimated)
        likelihood = Likelihood(information, linear, own)
        if averages_over_scales(model):
            mean, precision = averaged_given(model, *likelihood)
            return Found(mean, precision, likelihood, jnp.ones(()))
        return Found(state.theta, precision, likelihood, jnp.ones(()))

    def programs(self, model: Model, state: TraceState) -> Iterator[Lowered]:
        """The program of `found`, to be compiled."""
        with arithmetic():
            yield _compiled.lower(self, model, state)

    def _found(self, model: Model, state: TraceState) -> Any:
        """`Found` with arrays of NumPy."""
        with arithmetic():
            return jax.device_get(_compiled(self, model, state))

    def diagnostics(self, model: Model, state: TraceState, posterior: Any) -> dict[str, Any]:
        """Mean weight of the records, and how far late scores are from the estimate.

        Where rows are simulated, scores are released elsewhere on purpose.
        """
        del model, posterior
        state = jax.device_get(state)
        # Noise that makes a variance negative says nothing of small weights.
        positive = state.known._replace(variances=state.known.variances.clip(0))
        at_most = positive.mean_weight(towards=1.0, errors=2.0, least=0.0)
        found = {
            "mean_weight": float(sampling_weight(state.known)),
            "mean_weight_at_most": float(at_most),
        }
        weight = np.mean(state.blocks.weight[_LATE:], axis=1)
        if self.simulated is None and weight.any():
            late = weight @ state.blocks.point[_LATE:] / weight.sum()
            step = (state.theta - late) / np.sqrt(np.diag(state.covariance))
            found["last_step"] = float(np.sqrt(np.mean(step**2)))
        return found


_compiled = jax.jit(NADPVI.found, compiler_options=LITTLE_EFFORT)


def _informed(model: Model, state: TraceState, clip: Number) -> TraceState:
    """State with the curvature at the present parameters, if the model predicts it."""
    if not isinstance(model, HasInformation):
        return state
    params = flat_start(model)[1](state.theta.astype(jnp.float32))
    matrix, spread = model.information(params, jnp.asarray(clip, jnp.float32))
    known = Curvature.none(len(matrix))._replace(
        kept_matrix=matrix, variances=with_sum(jnp.diag(spread)), n=state.known.n + 1
    )
    return state._replace(
        known=known, curvature=matrix.astype(jnp.float64), spread=spread.astype(jnp.float64)
    )


def _given(
    model: Model, state: TraceState, h: jax.Array, unclear: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Mean and precision of the parameters, given the averages."""
    information, linear = _learnt(model, state, h, unclear)
    # Where records are unlike simulated rows, errors are larger than the covariance says, and a
    # smaller scale of the prior would not cover them.
    believed = 1.0 if state.known.foreseen is None else likeness_of(model, state.known).alike
    return normal_given(model, information, linear, (state.theta, state.covariance), believed)


def _learnt(
    model: Model, state: TraceState, h: jax.Array, unclear: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Information on the parameters in the averages, and their linear term in its likelihood."""
    seen = _combined(model, state)
    noise, observed = jnp.diag(seen.noise) + unclear, seen.score + h @ seen.point
    if isinstance(model, HasStartVariance):
        # The start is an estimate too, of where the sum of all scores is zero, as the rounds are.
        start, variance = (
            ravel_pytree(x)[0].astype(jnp.float64) for x in (model.init(), model.start_variance())
        )
        noise, observed = _with_start(h, noise, observed, start, variance)
    spread = noise + _sampling(model, state, h, 1 + seen.subsampled)
    gain, information = gained(h, spread)
    return information, gain @ observed


def _with_start(
    h: jax.Array, noise: jax.Array, observed: jax.Array, start: jax.Array, variance: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Noise covariance and value of the observation of ``h t*``, combined with the start."""
    # h over noise, which may be zero.
    rounds = jnp.linalg.solve(noise + 1e-6 * jnp.diag(jnp.diag(h)), h).T
    both = jnp.linalg.inv(rounds @ h + jnp.diag(1 / variance))
    return h @ both @ h, h @ both @ (rounds @ observed + start / variance)


def _trust(
    model: Model, state: TraceState, score: jax.Array, noise: jax.Array, unclear: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Factors of the weights of earlier scores, and of the new one: 1, or less for an outlier.

    An outlier lies beyond three standard deviations of its squared Mahalanobis distance: either the
    earlier scores had too much weight, or the new one has. Where responses are known only the
    former is possible: far from the optimum scores are not linear.
    """
    known, one = knows_responses(model), jnp.ones(())
    doubts = known or isinstance(model, HasWorkingPoint)
    if not doubts:
        return one, one
    h, size, seen = _asked(model, state), len(score), _combined(model, state)
    missed = score - seen.score - h @ (seen.point - state.theta)
    own = average(state.blocks).noise if known else seen.noise
    # Errors of h contribute as far as the optimum is unknown.
    spread = noise + own + state.known.variance * jnp.trace(state.covariance)
    surprise = missed @ jnp.linalg.solve(jnp.diag(spread) + unclear, missed) / size
    expected = 1 + 3 * (2 / size) ** 0.5
    keep = jnp.where(seen.weight[0] > 0, jnp.minimum(1, expected / surprise), 1)
    return keep, one if known else keep


def _averaged(
    model: Model,
    state: TraceState,
    at: jax.Array,
    score: jax.Array,
    point: jax.Array,
    noise: jax.Array,
    unclear: jax.Array,
    keep: tuple[jax.Array, jax.Array],
    subsampled: jax.Array,
) -> TraceState:
    """State with one more score in the averages of block `at`."""
    earlier, new = keep
    noise = noise / new
    # Coordinates related by the curvature must have one weight: they share the mean of `unclear`.
    weight = 1 / (noise + _shared(model, jnp.diag(unclear)))
    blocks = state.blocks._replace(weight=earlier * state.blocks.weight)
    one = Averages(weight, score, point, noise, subsampled)
    own = jax.tree.map(lambda x: x[at], blocks)
    both = jax.tree.map(lambda x, y: jnp.stack([x, y]), own, one)
    return state._replace(
        blocks=jax.tree.map(lambda x, new: x.at[at].set(new), blocks, average(both))
    )


def _combined(model: Model, state: TraceState) -> Averages:
    """Average over all blocks.

    Between its point and the present estimate a score may be far from linear: the square of what it
    should change by is added to its variance. Scores are nearly linear over a small part of the
    unit, where coordinates have one: there less is added. With a `working_point` the mean slope of
    scores is known. Only the part `_BENT` of what it corrects is added, and what an error of the
    curvature makes of the distance.
    """
    blocks = state.blocks
    if isinstance(model, HasWorkingPoint):
        slopes = model.mean_slopes(state.theta, blocks.point)
        bent = (state.theta - blocks.point) * (slopes - 1) @ _asked(model, state)
        doubt = jnp.square(_BENT * bent) + _wrong(model, state)
        return average(over(doubted(blocks, doubt), slopes))
    moved = state.theta - blocks.point
    away = jnp.square(moved @ _asked(model, state))
    if isinstance(model, HasStartVariance):
        away *= jnp.minimum(1, jnp.sum(jnp.square(moved / 2), axis=1, keepdims=True))
    doubt = jax.vmap(lambda x: _shared(model, x))(away)
    if _unlike(model):
        doubt += _wrong(model, state)
    return average(doubted(blocks, doubt))


def _wrong(model: Model, state: TraceState) -> jax.Array:
    """Variance of what an error of the curvature makes of the distances of the blocks' points."""
    # The curvature has one error for all blocks, so that many do not average it out.
    error, many = _curvature_error(model, state), jnp.sum(state.blocks.weight[:, 0] > 0)
    moved = jnp.square(state.blocks.point - state.theta)
    return many * error * jax.vmap(lambda x: _shared(model, x, jnp.sum))(moved)


def _curvature_error(model: Model, state: TraceState) -> jax.Array:
    """Variance of the noise that is left in an entry of the denoised curvature, by coordinate."""
    noise, asked = state.known.variance.astype(jnp.float64), _asked(model, state)
    variances = []
    for b in parameter_blocks(model):
        p = len(asked[b, b])
        signal = (_UNEQUAL * jnp.trace(asked[b, b]) / p) ** 2 / p
        variances.append(jnp.full(p, noise * (signal / (noise + signal)) ** 2))
    return jnp.concatenate(variances)


def _shared(
    model: Model, x: jax.Array, of: Callable[[jax.Array], jax.Array] = jnp.mean
) -> jax.Array:
    """Entries replaced by their means, or sums, over the blocks of parameters."""
    return jnp.concatenate([jnp.full_like(x[b], of(x[b])) for b in parameter_blocks(model)])


def _look(model: Model, state: TraceState) -> View:
    """Where to release a score: the model's working point, else the posterior mean."""
    if not isinstance(model, HasWorkingPoint):
        return View(state.theta, jnp.ones_like(state.theta), jnp.zeros_like(state.curvature))
    point, factors, doubt = model.working_point(state.theta, state.curvature, state.covariance)
    return View(point, factors, jnp.diag(doubt / factors**2))


def _asked(model: Model, state: TraceState) -> jax.Array:
    """Curvature used during the run."""
    return _positive(model, state.curvature)


def _estimated(model: Model, state: TraceState) -> jax.Array:
    """Curvature of the reported covariance."""
    h = _denoised(estimated_curvature, model, state.known)
    # Of other models columns are alike; axes are found such that parameters are. Those of linear
    # regression may hide in noise.
    doubtful = prior_axes(model) is None and knows_responses(model)
    if doubtful or isinstance(model, HasWorkingPoint):
        h = _without_doubtful(h, state.known)
    if isinstance(model, HasWorkingPoint):
        h = _less_sure(h, state.known)
    return _positive(model, h)


def _has_any_parameters(model: Model) -> bool:
    """Whether parameters may be anything, as those of users' models may."""
    return knows_responses(model) or isinstance(model, HasScoreUnit)


def _unlike(model: Model) -> bool:
    """Whether records may tell of some parameters far less than of others.

    With a working point, what scores far from the estimate count for is known otherwise.
    """
    return _has_any_parameters(model) and not isinstance(model, HasWorkingPoint)


def _possible(state: TraceState, estimated: jax.Array) -> jax.Array:
    """The estimated curvature, and others that it may be, by its noise, (1 + n, P, P)."""
    values, vectors = jnp.linalg.eigh(estimated, symmetrize_input=False)
    variance = state.known.variance.astype(values.dtype)
    others = possible_eigenvalues(values.clip(0), variance, _POSSIBLE, jnp)
    each = jnp.concatenate([values[None], others])
    return jax.vmap(lambda own: (vectors * own) @ vectors.T)(each)


def _without_doubtful(curvature: jax.Array, known: Curvature) -> jax.Array:
    """Curvature whose eigenvalues within the noise, and far below the others, are zero.

    Denoising draws an eigenvalue within the noise to the others. Of some parameters, such as a
    dispersion beside coefficients, records tell far less: intervals would be too narrow.
    """
    values, vectors = jnp.linalg.eigh(curvature, symmetrize_input=False)
    error = jnp.sqrt(2 * known.variance).astype(curvature.dtype)  # of a diagonal entry
    doubtful = values < jnp.minimum(error, _DOUBTFUL_BELOW * jnp.median(values))
    return (vectors * jnp.where(doubtful, 0, values)) @ vectors.T


def _less_sure(curvature: jax.Array, known: Curvature) -> jax.Array:
    """Curvature whose inverse square is the mean one, given the noise, to second order.

    Coordinates vary by the noise of scores over the curvature. Rows of rare categories lose weight:
    their curvature may be little more than its noise.
    """
    values, vectors = jnp.linalg.eigh(curvature, symmetrize_input=False)
    relative = 2 * known.variance / (values**2).clip(1e-30)
    return (vectors * values / jnp.sqrt(1 + 3 * relative)) @ vectors.T


def _positive(model: Model, curvature: jax.Array) -> jax.Array:
    return curvature + _TINY * prior_matrix(model)


def _denoised(
    estimate: Callable[[jax.Array, jax.Array], jax.Array], model: Model, known: Curvature
) -> jax.Array:
    """Noisy curvature denoised by `estimate`.

    It is zero between the model's blocks, and where its likelihood is flat.
    """
    matrix, variance = known.matrix.astype(jnp.float64), known.variance.astype(jnp.float64)
    basis = identified(model)
    if basis is not None:
        return basis @ estimate(basis.T @ matrix @ basis, variance) @ basis.T
    blocks = [matrix[block, block] for block in parameter_blocks(model)]
    if len({len(block) for block in blocks}) == 1:  # compiled once
        return block_diag(*jax.vmap(lambda block: estimate(block, variance))(jnp.stack(blocks)))
    return block_diag(*(estimate(block, variance) for block in blocks))


def _in_blocks(model: Model, matrix: jax.Array) -> jax.Array:
    """Matrix, zero between the model's blocks."""
    return block_diag(*(matrix[block, block] for block in parameter_blocks(model)))


def _sampling(model: Model, state: TraceState, h: jax.Array, factor: jax.Array) -> jax.Array:
    """Sampling covariance of a sum of scores over their factors, times `factor`.

    Factors are those at the posterior mean: at a `working_point` residuals are no larger.
    """
    factors = jnp.ones_like(state.theta)
    if state.spread is None and isinstance(model, HasPrecondition):
        unravel = flat_start(model)[1]
        factors = ravel_pytree(model.precondition(unravel(state.theta.astype(jnp.float32))))[
            0
        ].astype(jnp.float64)
    return factor * _sampled(model, state, h) / factors[:, None] / factors


def _sampled(model: Model, state: TraceState, h: jax.Array) -> jax.Array:
    """Sampling covariance of a sum of scores."""
    return sampling_covariance(state.known, h, model) if state.spread is None else state.spread
