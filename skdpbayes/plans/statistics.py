"""Plans of the solvers that release sufficient statistics (``solver="vips"``)."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from skdpbayes.models.base import NORM, CentredModel
from skdpbayes.models.linear_sums import LinearSums
from skdpbayes.plans.gradients import refuse_many_parameters
from skdpbayes.plans.settings import Bounds, PlanFunction, Planned, Settings
from skdpbayes.solvers.centred import FIRST_SHARE, SHORTER, CentredRelease, noise_growth
from skdpbayes.solvers.net_scores import RESCALED, NetDPVI, NetNADPVI, NetScores, NetSGLD
from skdpbayes.solvers.topics_dpvi import TopicsDPVI
from skdpbayes.solvers.topics_na_dpvi import TopicsNADPVI
from skdpbayes.solvers.topics_sgld import TopicsSGLD
from skdpbayes.solvers.vips import Counted, OneRelease, norm_above, one_release
from skdpbayes.solvers.vips_logistic import (
    FITTED_ROUNDS,
    LEAST_WEIGHT,
    MOST_ROUNDS,
    ONCE,
    LogisticVIPS,
)
from skdpbayes.solvers.vips_rounds import StatisticsRounds

_DRAWN_WEIGHT = 0.1  # least weight of a round at a draw: without noise, draws are averaged
_LANGEVIN_TIME, _LONGEST_STEP = 60.0, 0.5  # of a chain over topics: sum of its steps, and a step
_WORTH = 0.9  # noise of centred sums, over that of whole ones
_LEAST_CENTRED = 0.5  # error of a centre, over the limit of a sum of the most rows
_MOST_COUNTED = 2**31  # rows, where their number is private
TYPICAL_COUNT = 4.0  # summed contribution of a document of norm 1: the root of 16 words

if TYPE_CHECKING:
    from skdpbayes.mechanism.spec import Together
    from skdpbayes.models.base import ConjugateModel, StatisticsModel, TopicModel
    from skdpbayes.models.belief_net import SigmoidBeliefNet
    from skdpbayes.models.logistic import LogisticRegression
    from skdpbayes.models.moments import ColumnMoments
    from skdpbayes.privacy.accounting import GaussianSteps


def plan_one_release(
    settings: Settings, model: ConjugateModel, bounds: Bounds, n: int | None
) -> Planned:
    """One release of a conjugate model's summed statistics."""
    del bounds
    settings.refuse("clipping_norm", "sampling_rate", "n_steps", "learning_rate")
    if isinstance(model, LinearSums):  # its records have weights, whose sum is released
        settings.refuse_private_n()
        assert n is not None
        return _released_once(settings, one_release(model, n * settings.most_rows, "statistic"))
    known = n is not None and settings.most_rows == 1
    most = _MOST_COUNTED if n is None else n * settings.most_rows
    return _released_once(settings, one_release(model if known else Counted.of(model), most))


def plan_family(rounds: PlanFunction) -> PlanFunction:
    """One release of a family's summed statistics, which says all that rounds of scores would.

    Where the rows of a person add up, it is two: sums about a released centre are shorter. `rounds`
    is the plan where a parameter of rounds is given, but for a rate of one: all records take part.
    """

    def planned(
        settings: Settings, model: ConjugateModel, bounds: Bounds, n: int | None
    ) -> Planned:
        if settings.sampling_rate == 1:
            settings = replace(settings, sampling_rate=None)
        own = rounds if settings.asks_for_rounds else plan_sums
        return own(settings, model, bounds, n)

    return planned


def plan_sums(settings: Settings, model: ConjugateModel, bounds: Bounds, n: int | None) -> Planned:
    """One release of a family's summed statistics, or two where a record has several rows.

    One is better where the centre would be noise, which leaves nothing of clipped sums about it,
    and for two rows or many categories, whose sums about a centre have as much noise as whole ones.
    """
    most = settings.most_rows
    if most == 1 or n is None or not isinstance(model, CentredModel):
        return plan_one_release(settings, model, bounds, n)
    whole = most * Counted.of(model).statistic_bound() / model.statistic_bound()
    if noise_growth(model, most) > _WORTH * whole:
        return plan_one_release(settings, model, bounds, n)
    settings.refuse("clipping_norm", "sampling_rate", "n_steps", "learning_rate")
    schedule = [(FIRST_SHARE**-0.5, 1), ((1 - FIRST_SHARE) ** -0.5, 1)]
    steps = settings.noise(2, 1.0, schedule).steps
    error = steps[0].noise_multiplier / n * (most * model.n_statistics) ** 0.5
    if error > _LEAST_CENTRED:
        return plan_one_release(settings, model, bounds, n)
    norm = norm_above(model)
    solver = CentredRelease(norm, np.float64(n * most))
    return Planned(solver, settings.spec(steps), SHORTER * float(NORM * norm), "statistic")


def plan_moments(
    settings: Settings, model: ColumnMoments, bounds: Bounds, n: int | None
) -> Planned:
    """One release of the moments of columns, which also counts the records."""
    del bounds, n
    return _released_once(settings, one_release(model, 0, "mean"))


def _released_once(settings: Settings, solver: OneRelease) -> Planned:
    spec = settings.spec(settings.noise(1, 1.0).steps)
    return Planned(solver, spec, float(solver.clipping_norm), solver.together)


def opening_shares(settings: Settings, n_openings: int) -> tuple[float, ...]:
    """Budget shares of a model's openings.

    Raises
    ------
    ValueError
        If `n_steps` leaves no other release.
    """
    if settings.n_steps is not None and settings.n_steps <= n_openings:
        words = settings.defaults.opening_words.format(n_openings)
        raise ValueError(
            f"n_steps={settings.n_steps} is too few: {words} into the start. "
            f"Take at least {n_openings + 1}."
        )
    defaults = settings.defaults
    return defaults.solver_shares.get(settings.solver, defaults.opening_shares)[:n_openings]


def plan_rounds(
    settings: Settings, model: StatisticsModel, bounds: Bounds, n: int | None
) -> Planned:
    """Openings of a model, and rounds of its expected statistics."""
    del bounds
    settings.refuse("clipping_norm", "learning_rate")
    return _planned_rounds(settings, model, n, StatisticsRounds, 1.0)


def plan_topics_dpvi(
    settings: Settings, model: TopicModel, bounds: Bounds, n: int | None
) -> Planned:
    """Openings of topics, and rounds of expected counts at draws of the guide."""
    del bounds
    return _planned_rounds(settings, model, n, TopicsDPVI, _DRAWN_WEIGHT)


def plan_topics_na_dpvi(
    settings: Settings, model: TopicModel, bounds: Bounds, n: int | None
) -> Planned:
    """Openings of topics, and rounds corrected for missing information."""
    del bounds
    return _planned_rounds(settings, model, n, TopicsNADPVI, 1.0)


def plan_topics_sgld(
    settings: Settings, model: TopicModel, bounds: Bounds, n: int | None
) -> Planned:
    """Openings of topics, and Langevin dynamics.

    Raises
    ------
    ValueError
        If the privacy noise of a step exceeds the chain's own noise for a word of average
        frequency: ``(h tau / 2)^2 > h theta``, with ``theta = 4 n / (V K)`` expected counts, those
        of documents of norm 1 with 16 different words.
    """
    del bounds
    openings, rounds, rate, steps = _schedule(settings, model, n)
    norm, together = _main_block(model)
    step = min(_LANGEVIN_TIME / rounds, _LONGEST_STEP)
    noise = steps[len(openings)].noise_multiplier * settings.longest(norm, together) / rate
    cells = float(model.zeros()["topics"].size)
    if settings.private and n is not None:
        needed = step * noise**2 / 4 * cells / (TYPICAL_COUNT * min(norm, 1.0))
        documents = n * settings.most_rows  # at most, where records are persons
        if needed > documents:
            raise ValueError(
                f"solver='sgld' needs at least {math.ceil(needed)} documents for {cells:.0f} "
                f"counts (words times topics) at epsilon={settings.epsilon:g}, got {documents}: no "
                "step is small enough, since a chain that mixes in fewer or more rounds has as "
                "much privacy noise. Take at most "
                f"{max(int(cells * documents / needed), 1)} counts (fewer words or topics), a "
                "larger epsilon, or solver='na-dpvi'."
            )
    solver = TopicsSGLD(
        n_draws=settings.n_posterior_samples,
        n_openings=np.int32(len(openings)),
        step_size=np.float32(step),
        clipping_norm=np.float32(norm),
    )
    return Planned(solver, settings.spec(steps), norm, together)


def _planned_rounds(
    settings: Settings,
    model: StatisticsModel,
    n: int | None,
    kind: type[StatisticsRounds] | type[TopicsNADPVI],
    least_weight: float,
) -> Planned:
    """Plan of a solver that averages expected statistics.

    Without noise, a round has at least `least_weight` in the average.
    """
    openings, _, _, steps = _schedule(settings, model, n)
    norm, together = _main_block(model)
    least = 0.0 if settings.private else least_weight
    solver = kind(np.int32(len(openings)), np.float32(least), np.float32(norm))
    return Planned(solver, settings.spec(steps), norm, together)


def _schedule(
    settings: Settings, model: StatisticsModel, n: int | None
) -> tuple[tuple[float, ...], int, float, tuple[GaussianSteps, ...]]:
    """Budget shares of the openings, number of rounds, sampling rate, and all steps."""
    openings = opening_shares(settings, len(model.openings()))
    defaults = settings.defaults
    default = defaults.solver_rounds.get(settings.solver, defaults.rounds)[not settings.private]
    rounds = default if settings.n_steps is None else settings.n_steps - len(openings)
    rate = settings.rate(n, n or 1)
    opening, steps, _ = settings.round_noise(openings, rounds, rate)
    return openings, rounds, rate, opening + steps


def _main_block(model: StatisticsModel) -> tuple[float, Together]:
    """Clipping norm of the block with the largest share of a round, and how its rows add up."""
    own = max(model.blocks().values(), key=lambda block: block.share)
    return float(np.asarray(own.clipping_norm)), own.together


def plan_net_dpvi(
    settings: Settings, model: SigmoidBeliefNet, bounds: Bounds, n: int | None
) -> Planned:
    """Openings of a belief network, and rounds of its scores at draws of the guide."""
    del bounds
    return _planned_scores(settings, model, n, NetDPVI)


def plan_net_na_dpvi(
    settings: Settings, model: SigmoidBeliefNet, bounds: Bounds, n: int | None
) -> Planned:
    """Openings of a belief network, and rounds of its scores, weighted by their variances."""
    del bounds
    return _planned_scores(settings, model, n, NetNADPVI)


def plan_net_sgld(
    settings: Settings, model: SigmoidBeliefNet, bounds: Bounds, n: int | None
) -> Planned:
    """Openings of a belief network, and rounds of its scores along a chain."""
    del bounds
    kind = partial(NetSGLD, n_draws=settings.n_posterior_samples)
    return _planned_scores(settings, model, n, kind)


def _planned_scores(
    settings: Settings, model: SigmoidBeliefNet, n: int | None, kind: Callable[..., NetScores]
) -> Planned:
    """Plan of a solver that releases scores of a belief network."""
    openings, rounds, _, steps = _schedule(settings, model, n)
    if rounds <= RESCALED:
        least = len(openings) + RESCALED + 1
        raise ValueError(
            f"n_steps={settings.n_steps} is too few: one release goes into the start and "
            f"{RESCALED} scale the weights. Take at least {least}."
        )
    norm, together = _main_block(model)
    solver = kind(
        n_openings=np.int32(len(openings)),
        n_rounds=np.int32(rounds),
        least_weight=np.float32(0 if settings.private else 1),
        clipping_norm=np.float32(norm),
    )
    return Planned(solver, settings.spec(steps), norm, together)


def plan_logistic(
    settings: Settings, model: LogisticRegression, bounds: Bounds, n: int | None
) -> Planned:
    """Statistics of logistic regression: some are released once, the others in each round."""
    settings.refuse("clipping_norm", "sampling_rate", "learning_rate")
    settings.refuse_private_n()
    assert n is not None
    refuse_many_parameters(settings, model)
    default = 1 + FITTED_ROUNDS if settings.private else MOST_ROUNDS
    rounds = settings.n_steps or default
    if rounds > MOST_ROUNDS:
        raise ValueError(
            f"n_steps={rounds} is too many: solver='vips' takes at most {MOST_ROUNDS}."
        )
    more = rounds - 1
    schedule = [(1.0, 1)]
    if more:
        schedule = [(ONCE**-0.5, 1), (((1 - ONCE) / more) ** -0.5, more)]
    least = LEAST_WEIGHT if settings.private else 1.0
    row_norm = bounds.score / model.bounds(1.0)[0]
    solver = LogisticVIPS(
        np.float32(least * row_norm),
        np.float32(row_norm),
        NORM * np.float32(least * model.parts_bound(row_norm)),
        NORM * np.float32(least * row_norm**2),
        NORM * np.float32(least * bounds.curvature),
        np.float64(n * settings.most_rows),
        intercept=model.constant,
    )
    spec = settings.spec(settings.noise(rounds, 1.0, schedule).steps)
    return Planned(solver, spec, float(solver.clipping_norm), "sum")
