"""Privacy parameters of steps and overheads, at any epsilon or delta.

What follows from the steps is derived here, so that it cannot disagree with them. Overheads (finite
arithmetic, truncated batches) are what the steps, which are ideal, leave out.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from skdpbayes.privacy.accounting._steps import GaussianSteps, check_delta, check_epsilon
from skdpbayes.privacy.spent import Spent, Total, grown

if TYPE_CHECKING:
    from skdpbayes.privacy.accounting import PrivacyCurve


class StepsSpent(Spent):
    """What steps that were fixed beforehand have spent.

    Attributes
    ----------
    steps, along, cumulative : tuple of GaussianSteps
        Rounds, releases beside them, and all releases of earlier fits.
    epsilon_overhead, delta_overhead : float
        Shares of epsilon and delta that do not come from the steps.

    Notes
    -----
    **Formal guarantee.** The fit is (e, `delta_at` (e))-private for every e, and (`epsilon_at` (d),
    d)-private for every d, if (i) it released no more than `releases`, with noise as large and
    samples as small as they say, and (ii) it is within the overheads of those ideal steps: ideal
    runs replaced by real ones cost epsilon `epsilon_overhead`, and delta `delta_overhead` at the
    reported epsilon, growing as ``1 + exp(e)`` (`grown`).

    *Proof.* `compose` bounds the ideal steps at every epsilon (`PrivacyCurve`), and the overheads
    are added at the epsilon that is returned: `delta_at` adds them directly, and `epsilon_at`
    returns only an epsilon at which the delta that was left to the steps and the grown overhead sum
    to at most d. QED

    ``tests/privacy/test_report.py``: `test_overheads_are_part_of_every_answer` dies if an overhead
    is left out, `test_overhead_grows_at_least_as_truncation_does` if it does not grow.
    """

    steps: tuple[GaussianSteps, ...]
    along: tuple[GaussianSteps, ...]
    cumulative: tuple[GaussianSteps, ...]
    epsilon_overhead: float
    delta_overhead: float

    @property
    def sampling_rate(self) -> float | tuple[tuple[float, int], ...]:
        """The sampling rate, or pairs (rate, number of rounds) when it varies."""
        return _summary([(block.sampling_rate, block.steps) for block in self.steps])

    @property
    def noise_multiplier(self) -> float | tuple[tuple[float, int], ...]:
        """Standard deviation over C, or pairs (multiplier, number of rounds) when it varies."""
        return _summary([(block.noise_multiplier, block.steps) for block in self.steps])

    @property
    def n_steps(self) -> int:
        """Number of rounds."""
        return sum(block.steps for block in self.steps)

    @property
    def releases(self) -> tuple[GaussianSteps, ...]:
        """All that was released: `steps` and `along`."""
        return self.steps + self.along

    @property
    def curve(self) -> PrivacyCurve:
        """The `PrivacyCurve` of all releases (overheads not included)."""
        from skdpbayes.privacy.accounting import compose

        return compose(self.releases, self.adjacency)

    def delta_at(self, epsilon: float) -> float:
        """Return an upper bound on delta at `epsilon`, overheads included.

        It is 1 below `epsilon_overhead`.
        """
        epsilon = check_epsilon(epsilon)
        if epsilon < self.epsilon_overhead:
            return 1.0
        delta = float(self.curve.delta(epsilon - self.epsilon_overhead))
        return min(delta + grown(self.delta_overhead, self.epsilon, epsilon), 1.0)

    def epsilon_at(self, delta: float) -> float:
        """Return an upper bound on epsilon at `delta`, overheads included.

        It is infinity when there is none.
        """
        return self._epsilon_of(self.curve, check_delta(delta))

    def _epsilon_of(self, curve: PrivacyCurve, delta: float) -> float:
        """Epsilon of a curve with the overheads of this report."""
        remaining = delta - self.delta_overhead
        if remaining <= 0.0:
            return math.inf
        simple = curve.epsilon(remaining) + self.epsilon_overhead
        if self.delta_overhead == 0.0 or simple <= self.epsilon or math.isinf(simple):
            return simple
        # Above the reported epsilon the overhead grows: leave room for it.
        room = delta - 2.0 * grown(self.delta_overhead, self.epsilon, simple)
        for share in (room, 0.9 * remaining, 0.5 * remaining, 0.1 * remaining):
            if share > 0.0:
                candidate = curve.epsilon(share) + self.epsilon_overhead
                if share + grown(self.delta_overhead, self.epsilon, candidate) <= delta:
                    return candidate
        return math.inf

    @property
    def cumulative_epsilon(self) -> float:
        """Epsilon at `delta` of this fit and all earlier fits of the instance.

        They count as a plan fixed in advance. Overheads are this fit's: those of earlier fits are
        the caller's to add.
        """
        from skdpbayes.privacy.accounting import compose

        if not self.cumulative:
            return self.epsilon
        return self._epsilon_of(
            compose(self.cumulative + self.releases, self.adjacency), self.delta
        )

    @property
    def total(self) -> Total:
        """Of this fit and earlier ones of the instance (`cumulative_epsilon`)."""
        epsilon, every = self.cumulative_epsilon, self.cumulative + self.releases
        more = self.epsilon_overhead, grown(self.delta_overhead, self.epsilon, epsilon)
        return Total(epsilon, self.delta, self.adjacency, self.unit, every, *more)


def _summary(pairs: list[tuple[float, int]]) -> float | tuple[tuple[float, int], ...]:
    return pairs[0][0] if len({value for value, _ in pairs}) == 1 else tuple(pairs)
