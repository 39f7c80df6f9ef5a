"""What a private search has spent."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, NoReturn

from skdpbayes.privacy.card import rounded
from skdpbayes.privacy.json_values import finite
from skdpbayes.privacy.spent import Spent, Total, all_voids, least_secure


@dataclass(frozen=True)
class SelectionSpent(Spent):
    """What a private search cost.

    Attributes
    ----------
    epsilon, delta : float
        Of everything that the search exposes: the best model, its parameters and its score.
    total_epsilon, total_delta : float
        Of this search and all earlier ones of the same object.
    numerics : {"secure", "fast"}
        As in `PrivacySpent`.
    adjacency, unit : str
        What "one record" means.
    run_epsilon : float
        At which each run was calibrated, with delta over `n_iter`.
    n_iter : float
        Expected number of runs.
    seeded : bool
        Whether `random_state` was set, which voids the guarantee.
    voided_by : tuple of str
        Reasons for which the guarantee does not hold.

    Examples
    --------
    >>> import numpy as np
    >>> from skdpbayes import DPBetaBernoulli
    >>> from skdpbayes.model_selection import DPRandomizedSearchCV
    >>> X = np.random.default_rng(0).random((2000, 1)) < 0.1
    >>> grid = {"prior_b": [1, 9]}
    >>> search = DPRandomizedSearchCV(DPBetaBernoulli(), grid, epsilon=1.0, n_iter=2)
    >>> spent = search.fit(X).privacy_spent_
    >>> spent.epsilon <= 1.0 and spent.run_epsilon < spent.epsilon
    True
    """

    epsilon: float
    delta: float
    total_epsilon: float
    total_delta: float
    numerics: str
    adjacency: str
    unit: str
    run_epsilon: float
    n_iter: float
    seeded: bool = False
    voided_by: tuple[str, ...] = ()

    @property
    def releases(self) -> None:
        """None: chance decides how many runs there are."""

    @property
    def total(self) -> Total:
        """Of this search and all earlier ones of the same object."""
        return Total(self.total_epsilon, self.total_delta, self.adjacency, self.unit)

    @classmethod
    def composed(
        cls,
        reports: Mapping[str, Spent],
        earlier: Sequence[Spent] = (),
        *,
        public: Mapping[str, Any] | None = None,
        covered: Collection[str] = (),
    ) -> SelectionSpent:
        """Report of several steps, the last of which is a search; see `Spent.composed`."""
        del public, covered  # a search names neither
        *_, last = reports.values()
        if not isinstance(last, cls):
            raise ValueError(f"The last step has to be a private search, got {last!r}.")
        every = [*reports.values(), *earlier]
        total = Total.composed([one.total for one in every])
        return replace(
            last,
            epsilon=total.epsilon,
            delta=total.delta,
            total_epsilon=total.epsilon,
            total_delta=total.delta,
            numerics=least_secure(every),
            seeded=any(one.seeded for one in every),
            voided_by=all_voids(reports.values(), earlier),
        )

    @property
    def cumulative(self) -> NoReturn:
        """Raise: a second fit cannot build on the cost of a search, which is no sum of steps.

        Raises
        ------
        ValueError
            Always.
        """
        raise ValueError(
            "The result of a private search cannot be fitted again, as its cost is no sum: "
            "clone it."
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON's types; infinity becomes the string ``"inf"``."""
        record: dict[str, Any] = finite(asdict(self))
        return record

    @classmethod
    def from_json(cls, text: str) -> SelectionSpent:
        """Rebuild from `to_json`."""
        record = json.loads(text)
        numeric = ("epsilon", "total_epsilon", "run_epsilon")
        record |= {name: float(record[name]) for name in numeric} | {
            "voided_by": tuple(record["voided_by"])
        }
        return cls(**record)

    def __str__(self) -> str:
        kept = "" if self.guarantee_holds else f"; NO GUARANTEE: {'; '.join(self.voided_by)}"
        return (
            f"({rounded(self.epsilon)}, {rounded(self.delta)})-DP, {self.adjacency} per "
            f"{self.unit}: {self._runs}, {self.numerics} numerics{kept}"
        )

    @property
    def _runs(self) -> str:
        each = rounded(self.run_epsilon)
        if self.n_iter == 1:
            return f"one run, with epsilon {each}"
        return f"the best of some {self.n_iter:g} runs, each with epsilon {each}"

    def _rows(self) -> list[tuple[str, str]]:
        rows = [
            ("adjacency", f"{self.adjacency}, per {self.unit}"),
            ("search", self._runs),
            ("numerics", self.numerics),
            ("randomness", "seeded" if self.seeded else "operating system"),
        ]
        if self.total_epsilon > self.epsilon:
            total = f"epsilon {rounded(self.total_epsilon)}, delta {rounded(self.total_delta, 3)}"
            rows.append(("with earlier searches", total))
        return rows
