"""Plans of the solvers that release gradients: dpvi, na-dpvi, sgld, a user's guide, Adam.

Each plan is a function of settings, a model, bounds and the public number of records, and returns a
`Planned`. `openings` are budget shares of the releases before the rounds.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from skdpbayes.mechanism.spec import MAX_SCHEDULE
from skdpbayes.models.normal_rows import NormalRows
from skdpbayes.models.protocols import HasRandomStart, HasScoreUnit
from skdpbayes.models.rescaled import COLUMN_WAVES, WAVES_RESOLVED, RescaledLinear
from skdpbayes.models.whitened import WhitenedLogistic
from skdpbayes.plans.settings import Bounds, PlanFunction, Planned, Settings
from skdpbayes.privacy.accounting import (
    GaussianSteps,
    decreasing_blocks,
    noise_multiplier,
    step_size,
)
from skdpbayes.solvers.adam import Adam
from skdpbayes.solvers.aware_sgld import AwareSGLD
from skdpbayes.solvers.dpvi import DPVI, FullRank, MeanField
from skdpbayes.solvers.gaussian_guides import CURVATURE_RATIO
from skdpbayes.solvers.na_dpvi import NADPVI
from skdpbayes.solvers.opened import Opened
from skdpbayes.solvers.own_guide import OwnGuide
from skdpbayes.solvers.recalibrated import Recalibrated
from skdpbayes.solvers.sgld import SGLD

if TYPE_CHECKING:
    from skdpbayes.models.base import Model
    from skdpbayes.models.grouped import GroupedLogistic
    from skdpbayes.models.logistic import LogisticRegression
    from skdpbayes.models.numpyro.amortised import Amortised
    from skdpbayes.models.numpyro.model import NumPyroModel

CLIPPED = 0.5
"""Clipping norm over the median norm of scores of programs, under much noise."""

PASSES = 16
"""Passes over the data in a fit by dpvi.

Subsampling then adds a tenth to the variances that sampled data alone would have
(``docs/solvers/dpvi.md``).
"""


_WHITENING = 0.05  # budget share of the second moments that whiten rows
_CLOSING, _LEAST_CLOSED = 0.07, 15  # budget share of the logits' scale; least number of rounds
_LEAST_ROUNDS = 20
_COST, _LEAST_COST = 2e10, 800  # entries of curvatures in a fit by na-dpvi; of one record, at least
_EDGE, _RESOLVED = 0.3, 0.6  # see `rescaling_shares`
_WAVES = 0.1
_WAVE_SHARES, _MOMENT_SHARES = (0.01, 0.1), (0.01, 0.1)
_UNKNOWN_SHARES = (0.06, 0.03)  # of both, where the number of records is private
_RESOLVED_EVERY, _UNKNOWN_EVERY = 6, 4  # rounds for a release of the curvature; for a private n
_REACH_EDGE, _FARTHEST = 0.05, 3.0  # see `row_reach`
_CUT_NOISE, _CUTS = 0.15, (2.0, 10.0)  # see `residual_cut`
_CLIP_NOISE, _MOST_CLIPPED = 0.1, 6.0  # see `clipped_share`
_CURVATURE_EDGE, _CURVATURE_RATIOS = 0.07, (2.0, 6.0)  # see `curvature_ratio`
_SHRINKAGE = 0.1  # `logit_shrinkage` over `score_noise`
_CLIPS = (0.5, 1.5)  # of whitened scores, in typical norms of a row
_USUAL_NOISE = 1.0  # `score_noise` where the number of records is private
_STEP = 0.4  # step size of a Langevin chain with released curvature, over its friction
_TURNS = (0.0, 0.02, 0.06, 0.15)  # and the last round: releases of curvature, as shares of a chain
_TURN_SHARES = (0.01, 0.02, 0.03, 0.04, 0.08)  # of its budget
_MOST_HIDDEN, _LEAST_CHAIN = 0.1, 400  # for such chains: `moments_edge`, and rounds
_LAST, _LEAST_LAST = 0.02, 6  # share and number of rounds that calibrate outputs of networks
_HIDDEN, _OUTPUTS_CLIP = 0.05, 1.0  # see `recalibrated`; clipping norm of their scores
_RATE = 0.05  # of Adam, for the parameters of amortised guides


def _too_few(n_rounds: int, n_openings: int) -> ValueError:
    start = f"{n_openings} go into the start, and " if n_openings else ""
    return ValueError(
        f"n_steps={n_rounds + n_openings} is too few: {start}the first round releases curvature, "
        f"not a gradient. Take at least {n_openings + 2}."
    )


def n_parameters(model: Model) -> int:
    """Number of a model's parameters; its arrays may be shapes."""
    shapes = jax.eval_shape(lambda own: own.init(), model)
    return sum(leaf.size for leaf in jax.tree.leaves(shapes))


def marginal_shape(model: Any) -> Any:
    """Marginal of a model before its openings, with shapes as arrays: nothing is computed."""
    return jax.eval_shape(lambda own: own.marginal(own.init()), model)


def refuse_many_parameters(settings: Settings, model: Model) -> None:
    """Raise a `ValueError` if the model has too many parameters to release a matrix."""
    size, most = n_parameters(model), settings.defaults.curvature_up_to
    if size > most:
        raise ValueError(
            f"solver={settings.solver!r} releases a matrix of all pairs of parameters, here "
            f"{size}, and takes at most {most}: noise would hide it. Use solver='dpvi'."
        )


def _refuse_without_bound(settings: Settings, bounds: Bounds) -> None:
    if settings.clipping_norm is None and bounds.clip is None and not math.isfinite(bounds.score):
        raise ValueError("The score of this model has no bound: pass clipping_norm.")


def plan_dpvi(
    settings: Settings,
    model: Model,
    bounds: Bounds,
    n: int | None,
    openings: Sequence[float] = (),
) -> Planned:
    """Variational inference with a Gaussian guide."""
    _refuse_without_bound(settings, bounds)
    defaults = settings.defaults
    n_steps, batch = settings.schedule((500, 2**12), openings)
    if n is not None and "dpvi" not in defaults.schedules:
        batch = max(batch, math.ceil(PASSES * n / max(n_steps, 1)))
    rate = settings.rate(n, batch)
    n_guess = (batch / rate if n is None else n) * settings.most_rows
    size = n_parameters(model)
    full_rank = settings.guide == "full_rank" or (
        settings.guide == "auto" and size <= defaults.full_rank_up_to
    )
    if full_rank and n_steps < 2:
        raise _too_few(n_steps, len(openings))
    opening, steps, _ = settings.round_noise(openings, n_steps, rate)

    clip, fraction = settings.clipping_norm or bounds.clip, None
    if clip is None:
        # Variance of the noise in the averaged unclipped score, over the curvature that the bounds
        # suggest. If noise dominates, clipping saves more information than it costs.
        noise = steps[0].noise_multiplier * settings.longest(bounds.score) / rate
        variance = noise**2 / n_steps
        ratio = variance * size / (0.8 * n_guess * bounds.curvature)
        if ratio > 0:
            clip = bounds.score * min(max(ratio**-0.25 / 4, 0.25), 1)
            fraction = min(math.sqrt(ratio), 1) / 2
        else:
            clip = 1.01 * bounds.score
    limit = float(n_guess) if defaults.limited else math.inf
    solver = DPVI(
        guide=FullRank(
            np.float32(1.01 * bounds.curvature),
            np.float32(defaults.calm),
            np.float32(defaults.fast),
            np.float32(curvature_ratio(settings, model, bounds, n_guess)),
        )
        if full_rank
        else MeanField(local=isinstance(model, HasRandomStart)),
        learning_rate=np.float32(settings.learning_rate or defaults.learning_rates[not full_rank]),
        clipping_norm=np.float32(clip),
        n_records=np.float32(limit),
        clip_fraction=None if fraction is None else np.float32(fraction),
    )
    reported = float(solver.clipping_norm) if fraction is None else None
    return Planned(solver, settings.spec(opening + steps), reported, "score")


def plan_na_dpvi(
    settings: Settings,
    model: Model,
    bounds: Bounds,
    n: int | None,
    openings: Sequence[float] = (),
    *,
    may_close: bool = False,
) -> Planned:
    """Noise-aware inference from averaged scores and a released curvature.

    `may_close` says whether a last round may release the scale of the logits. It does where all
    records take part, since one round cannot average the noise of subsampling, and where there are
    many rounds.
    """
    _refuse_without_bound(settings, bounds)
    if settings.learning_rate is not None:
        raise ValueError(
            "learning_rate needs solver='dpvi' or 'sgld'; 'na-dpvi' has no such parameter."
        )
    refuse_many_parameters(settings, model)
    # By default all records take part in every round: full batches have no error of sampling.
    n_steps, batch = settings.schedule((200, 0), openings)
    if n is not None and not batch:
        batch = n
        if settings.n_steps is None:
            cost = n * settings.most_rows * max(n_parameters(model) ** 2, _LEAST_COST)
            affordable = int(_COST / cost)
            n_steps = min(n_steps, max(_LEAST_ROUNDS, affordable))
    rate = settings.rate(n, batch)
    if n_steps < 2:
        raise _too_few(n_steps, len(openings))
    closes = may_close and settings.private and rate == 1 and n_steps >= _LEAST_CLOSED
    if closes and settings.n_steps is not None:
        n_steps -= 1
    closings = (_CLOSING,) if closes else ()
    opening, steps, _ = settings.round_noise(openings, n_steps, rate, closings=closings)
    # Nearly equal norms make the best use of the noise; without noise, no score is clipped.
    bounded = math.isfinite(bounds.score)
    score, curvature = bounds.score, bounds.curvature
    if bounds.typical and (settings.private or not bounded):
        score, curvature = bounds.typical
        if isinstance(model, HasScoreUnit):
            curvature = curvature_ratio(settings, model, bounds, n) * score**2
    share = 0.2 if settings.private else 1.01
    clip = settings.clipping_norm or bounds.clip or score * share
    norm = 1.01 * curvature * min(1, clip / score)  # the curvature is weighted like its score
    every = settings.defaults.curvature_every
    persons = None if n is None or settings.most_rows == 1 else np.float32(n)
    solver = NADPVI(np.float32(clip), np.float32(norm), np.int32(every), persons)
    if may_close:  # at a round, or at none, in the same program
        solver = replace(solver, closes_at=np.int32(n_steps if closes else -1))
    return Planned(solver, settings.spec(opening + steps), float(solver.clipping_norm), "score")


def moments_edge(settings: Settings, n_columns: int, n: float) -> float:
    """Edge of the spectrum of the noise of second moments, over a typical eigenvalue.

    If the whole budget were spent on rows of typical length.
    """
    return (2 * n_columns**3) ** 0.5 * settings.least_noise() / n


def curvature_ratio(settings: Settings, model: Model, bounds: Bounds, n: float | None) -> float:
    """Clipping norm of a record's curvature over the square of its score's.

    The curvature of a clipped score is its length times the clipping norm. Where scores are clipped
    at about their typical length, many are longer: intervals would be too wide. The norm is as
    large as noise allows. The edge of the noise's spectrum, if the whole budget were spent, is
    `_CURVATURE_EDGE` times a typical eigenvalue.
    """
    if not isinstance(model, HasScoreUnit):
        return CURVATURE_RATIO
    edge = moments_edge(settings, n_parameters(model), n) if n else math.inf
    least, most = _CURVATURE_RATIOS
    # At half the median norm, a typical record has half of its curvature; from the median on, all.
    more = min(bounds.longer, 2)
    return min(max(_CURVATURE_EDGE / max(edge, 1e-9), least) * more / bounds.longer**2, most)


def clipped_share(settings: Settings, size: int, n: int | None) -> float:
    """Clipping norm of scores over their median norm: larger where noise is small.

    Where records do not follow the law of the model, what clipping takes off is not what the model
    expects, and leaves a bias.
    """
    return _farthest(settings, size, n, _CLIP_NOISE, (CLIPPED, _MOST_CLIPPED))


def _farthest(
    settings: Settings, size: int, n: int | None, share: float, limits: tuple[float, float]
) -> float:
    """Length of the longest score over that of a typical one, within limits.

    If the whole budget were spent, the variance of the noise would be `share` times that of
    sampling.
    """
    least, most = limits
    if n is None:
        return least
    noise = settings.least_noise() * (size / n) ** 0.5
    return least if noise * least > share**0.5 else min(share**0.5 / max(noise, 1e-9), most)


def score_noise(settings: Settings, model: Model, n: float) -> float:
    """Variance of the noise in the average whitened score, over that of sampling.

    At a clipping norm of a typical row, if the whole budget were spent.
    """
    return settings.least_noise() ** 2 * n_parameters(model) / (0.15 * n)


def whitened_clip(noise: float, n_columns: int) -> float:
    """Clipping norm of whitened scores, given their `score_noise`.

    All have one length where privacy noise dominates, and hardly one is clipped where sampling
    does.
    """
    return min(max(0.55 * noise**-0.25, _CLIPS[0]), _CLIPS[1]) * n_columns**0.5


def plan_whitened(
    settings: Settings, model: WhitenedLogistic | GroupedLogistic, bounds: Bounds, n: int | None
) -> Planned:
    """Noise-aware inference in coordinates found by one release of second moments."""
    marginal = marginal_shape(model)
    p = model.n_columns
    noise = score_noise(settings, marginal, float(n)) if n is not None else _USUAL_NOISE
    clip = whitened_clip(noise, p)
    own = bounds._replace(score=clip, clip=clip, curvature=clip * p**0.5 / 4)
    closes = isinstance(model, WhitenedLogistic) and model.n_rows == 1 and model.rows_have_scale
    planned = plan_na_dpvi(settings, marginal, own, n, (_WHITENING,), may_close=closes)
    solver = planned.solver
    if model.rows_have_scale:  # the constant column tells it
        rows = NormalRows(model.standard_rows(), model.n_records)
        solver = replace(solver, simulated=rows, logit_shrinkage=np.float32(_SHRINKAGE * noise))
    return planned._replace(solver=Opened(solver, np.int32(1)))


def rescaling_shares(
    settings: Settings, n_features: int, intercept: bool, n: int | None
) -> tuple[float, ...]:
    """Budget shares of the waves of columns and of second moments; those that are released.

    Shares let the noise of the amplitude of a wave be `_WAVES`, where that of a column without
    width is 1, and the edge of the spectrum of the noise of second moments `_EDGE` times a typical
    eigenvalue, within `_WAVE_SHARES` and `_MOMENT_SHARES` of the budget. If the largest share
    leaves these figures above `WAVES_RESOLVED` and `_RESOLVED`, the release is not worth its cost.
    If the number of records is private, both are released with `_UNKNOWN_SHARES`.
    """
    if not settings.private:
        return ()
    if n is None:
        return _UNKNOWN_SHARES
    least, most = _WAVE_SHARES
    # If the whole budget were spent, half of which goes to columns.
    error = (2 * COLUMN_WAVES * n_features) ** 0.5 * settings.least_noise() / n
    waves = min(max((error / _WAVES) ** 2, least), most)
    if error > WAVES_RESOLVED * waves**0.5:
        return ()
    least, most = _MOMENT_SHARES
    edge = moments_edge(settings, n_features + intercept, n)
    moments = min(max((edge / _EDGE) ** 2, least), most)
    return (waves, moments) if edge < _RESOLVED * moments**0.5 else (waves,)


def residual_cut(settings: Settings, n_columns: int, n: int | None) -> float:
    """Where standardised residuals are cut: farther out where noise is small.

    Residuals that are not symmetric leave a bias where they are cut.
    """
    return _farthest(settings, n_columns, n, _CUT_NOISE, _CUTS)


def row_reach(settings: Settings, n_columns: int, n: int | None) -> float:
    """Length beyond which rows lose weight, over a typical one: larger where noise is small.

    The noise of the curvatures grows with its square. The edge of its spectrum, if the whole budget
    were spent, is `_REACH_EDGE` times a typical eigenvalue.
    """
    if n is None:
        return 1.0
    edge = moments_edge(settings, n_columns, n)
    return min(max((_REACH_EDGE / edge) ** 0.5, 1.0), _FARTHEST)


def plan_rescaled(
    settings: Settings, model: RescaledLinear, bounds: Bounds, n: int | None
) -> Planned:
    """Noise-aware inference in coordinates found by a release of scales, and of second moments."""
    shares = rescaling_shares(settings, model.n_features, model.intercept, n)
    n_steps, _ = settings.schedule((200, 2**17), ())  # the openings among them
    if n_steps < len(shares) + 2:
        raise _too_few(n_steps - len(shares), len(shares))
    marginal = marginal_shape(model)
    every = _RESOLVED_EVERY if n is not None else _UNKNOWN_EVERY
    defaults = replace(settings.defaults, curvature_every=every)
    own = replace(settings, n_steps=n_steps, defaults=defaults)
    planned = plan_na_dpvi(own, marginal, bounds, n, shares)
    return planned._replace(solver=Opened(planned.solver, np.int32(len(shares))))


def plan_sgld(
    settings: Settings,
    model: Model,
    bounds: Bounds,
    n: int | None,
    openings: Sequence[float] = (),
) -> Planned:
    """Langevin dynamics; the noise determines the step sizes."""
    _refuse_without_bound(settings, bounds)
    del model
    n_steps, batch = settings.schedule((2000, 2**16), openings)
    rate, n_chains = settings.rate(n, batch), settings.n_chains
    friction = 1.0 if settings.sampler == "sgld" else float(settings.friction)
    share = 0.25 if settings.private else 1.01
    clip = settings.clipping_norm or bounds.clip or bounds.score * share
    if openings and n_chains > 1:
        raise ValueError("Openings are made once: n_chains must be 1.")
    blocks = (
        [(1.0, n_steps)]
        if settings.step_schedule == "constant"
        else decreasing_blocks(n_steps, MAX_SCHEDULE - len(openings))
    )
    schedule = [(size**-0.5, count * n_chains) for size, count in blocks]
    opening, _, noise = settings.round_noise(openings, n_steps * n_chains, rate, schedule)
    longest = settings.longest(clip)
    largest = step_size(noise, rate, longest, friction)
    if settings.learning_rate is not None:
        first = float(settings.learning_rate)
        if first > largest * (1 + 1e-9):
            raise ValueError(
                f"learning_rate={first:g} is too large for epsilon={settings.epsilon:g}: the noise "
                "that makes the chain sample the posterior would not be private enough. At most "
                f"{largest:g} is allowed with this clipping norm, sampling rate and number of "
                "steps; fewer steps or a smaller clipping_norm allow more."
            )
    else:
        if n is None:
            raise ValueError(
                "learning_rate=None takes the number of records from X, which "
                "adjacency='add_remove' keeps private. Pass learning_rate, or use "
                "adjacency='zero_out'."
            )
        curvature = bounds.curvature if bounds.mean_curvature is None else bounds.mean_curvature
        first = min(largest, 1 / (n * settings.most_rows * curvature + bounds.prior_precision))
    steps = tuple(
        GaussianSteps(noise_multiplier(first * size, rate, longest, friction), rate, count)
        for size, count in blocks
    )
    solver = SGLD(
        n_draws=-(-settings.n_posterior_samples // n_chains),
        clipping_norm=np.float32(clip),
        friction=np.float32(friction),
        sampler=settings.sampler,
    )
    return Planned(
        solver, settings.spec(opening + steps, n_chains), float(solver.clipping_norm), "score"
    )


def plan_aware_sgld(
    settings: Settings, model: LogisticRegression | WhitenedLogistic, bounds: Bounds, n: int | None
) -> Planned:
    """Langevin dynamics with released curvature, in whitened coordinates where there is noise.

    A learning rate of the user's own means a plain chain (`plan_sgld`).
    """
    own = model.model if isinstance(model, WhitenedLogistic) else model
    if settings.learning_rate is not None or n is None:
        return plan_sgld(settings, own, bounds, n)
    if settings.step_schedule != "constant":
        raise ValueError(
            "step_schedule='decreasing' needs a learning_rate, that of the first step."
        )
    refuse_many_parameters(settings, own)
    n_chains = settings.n_chains
    shares: tuple[float, ...] = ()
    if settings.private:
        edge = moments_edge(settings, n_parameters(own), n)
        if edge > _MOST_HIDDEN:
            raise ValueError(
                f"solver='sgld' needs at least {math.ceil(edge / _MOST_HIDDEN * n)} rows for "
                f"{n_parameters(own)} coefficients at epsilon={settings.epsilon:g}, got {n}: "
                "noise would hide the curvature by which the chain steps. Use solver='na-dpvi'."
            )
        if n_chains > 1:
            raise ValueError(
                f"n_chains={n_chains} needs a learning_rate: without one the law of a chain "
                "includes its own privacy noise, and chains need not agree."
            )
        shares = (_WHITENING,)
        clip = settings.clipping_norm or whitened_clip(score_noise(settings, own, n), own.n_columns)
        norm = 1.01 * clip * own.n_columns**0.5 / 4
    else:
        clip, norm = settings.clipping_norm or 1.01 * bounds.score, 1.01 * bounds.curvature
    n_steps, batch = settings.schedule((2000, 2**16), shares)
    if n_steps < _LEAST_CHAIN:
        raise ValueError(
            f"n_steps={n_steps + len(shares)} is too few for a chain to mix: solver='sgld' needs "
            f"{_LEAST_CHAIN + len(shares)}, or a learning_rate, which takes any number."
        )
    rate = settings.rate(n, batch)
    # Curvature has its shares of what the opening leaves; scores have the rest.
    turns = [*(round(share * n_steps) for share in _TURNS), n_steps - 1]
    share = (1 - sum(_TURN_SHARES)) / (n_steps - len(turns))
    gaps = [later - turn - 1 for turn, later in pairwise(turns)]
    pairs = [((turn, 1), (share, gap)) for turn, gap in zip(_TURN_SHARES, [*gaps, 0], strict=True)]
    schedule = [(part**-0.5, count * n_chains) for pair in pairs for part, count in pair if count]
    opening, steps, _ = settings.round_noise(shares, n_steps * n_chains, rate, schedule)
    steps = tuple(replace(part, steps=part.steps // n_chains) for part in steps)
    friction = 1.0 if settings.sampler == "sgld" else float(settings.friction)
    solver = AwareSGLD(
        n_draws=-(-settings.n_posterior_samples // n_chains),
        clipping_norm=np.float32(clip),
        curvature_norm=np.float32(norm),
        turns=np.array(turns, np.int32),
        step_size=np.float32(_STEP * friction),
        friction=np.float32(friction),
        sampler=settings.sampler,
    )
    planned = Opened(solver, np.int32(1)) if shares else solver
    return Planned(planned, settings.spec(opening + steps, n_chains), float(clip), "score")


def plan_point(
    settings: Settings,
    model: Model,
    bounds: Bounds,
    n: int | None,
    openings: Sequence[float] = (),
) -> Planned:
    """The most probable parameters, by Adam."""
    del model
    assert bounds.clip is not None
    n_steps, batch = settings.schedule((1000, 2**11), openings)
    opening, steps, _ = settings.round_noise(openings, n_steps, settings.rate(n, batch))
    rate = settings.learning_rate or settings.defaults.learning_rate
    solver = Adam(np.float32(rate), np.float32(bounds.clip))
    return Planned(solver, settings.spec(opening + steps), float(solver.clipping_norm), "score")


def plan_own_guide(
    settings: Settings,
    model: NumPyroModel,
    bounds: Bounds,
    n: int | None,
    openings: Sequence[float] = (),
) -> Planned:
    """Variational inference with a user's guide."""
    from skdpbayes.models.numpyro.guide import read_guide

    assert bounds.clip is not None
    n_steps, batch = settings.schedule((500, 2**12), openings)
    opening, steps, _ = settings.round_noise(openings, n_steps, settings.rate(n, batch))
    guide = read_guide(own_copy(settings.guide, model.program), model)
    rate = settings.learning_rate or settings.defaults.learning_rate
    solver = OwnGuide(guide, np.float32(rate), np.float32(bounds.clip))
    return Planned(solver, settings.spec(opening + steps), float(solver.clipping_norm), "score")


def plan_amortised(
    settings: Settings,
    model: Amortised,
    bounds: Bounds,
    n: int | None,
    openings: Sequence[float] = (),
) -> Planned:
    """Variational inference with a user's guide that draws latent variables of records."""
    from skdpbayes.models.numpyro.amortised import AmortisedGuide

    assert bounds.clip is not None
    n_steps, batch = settings.schedule((1000, 2**10), openings)
    opening, steps, _ = settings.round_noise(openings, n_steps, settings.rate(n, batch))
    rate = settings.learning_rate or _RATE
    solver = OwnGuide(AmortisedGuide(model), np.float32(rate), np.float32(bounds.clip))
    return Planned(solver, settings.spec(opening + steps), float(solver.clipping_norm), "score")


def plan_guided(
    settings: Settings,
    model: Any,
    bounds: Bounds,
    n: int | None,
    openings: Sequence[float] = (),
) -> Planned:
    """Variational inference with the requested guide."""
    if callable(settings.guide):
        return plan_own_guide(settings, model, bounds, n, openings)
    if settings.guide == "point":
        return plan_point(settings, model, bounds, n, openings)
    return plan_dpvi(settings, model, bounds, n, openings)


def recalibrated(plan: PlanFunction) -> PlanFunction:
    """Plan of a network whose last rounds find the scale and the offsets of its outputs.

    Where noise would hide these, or without noise, all rounds are on the weights: the noise of the
    averaged score must be below `_HIDDEN` for each row.
    """

    def planned(settings: Settings, model: Any, bounds: Bounds, n: int | None) -> Planned:
        found = plan(settings, model, bounds, n)
        spec = found.spec
        last = max(_LEAST_LAST, round(_LAST * spec.n_steps))
        if not settings.private or settings.n_chains > 1 or spec.n_steps < 3 * last:
            return found
        records = n or settings.schedule((0, 2**11), ())[1] / spec.sampling_rate
        noise = spec.steps[-1].noise_multiplier * settings.longest(_OUTPUTS_CLIP) / last**0.5
        if noise / spec.sampling_rate > _HIDDEN * records * settings.most_rows:
            return found
        outputs = NADPVI(np.float32(_OUTPUTS_CLIP), np.float32(CURVATURE_RATIO * _OUTPUTS_CLIP**2))
        return found._replace(
            solver=Recalibrated(found.solver, outputs, np.int32(spec.n_steps - last))
        )

    return planned


def own_copy(guide: Any, program: Any) -> Any:
    """Copy of a guide, since NumPyro's guides keep the arguments of their first call.

    Raises
    ------
    ValueError
        If the guide has been called: it holds records, and starting values that depend on them.
    """
    if getattr(guide, "prototype_trace", None) is not None:
        raise ValueError(
            "The guide has been used, and holds the data of that use: pass a new "
            f"{type(guide).__name__}."
        )
    return _copied(guide, program)


@lru_cache(maxsize=32)
def _copied(guide: Any, program: Any) -> Any:
    """One copy for each model and guide, since another copy would be compiled anew."""
    del program
    return copy.deepcopy(guide)
