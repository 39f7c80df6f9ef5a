"""What a private search has spent."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from skdpbayes.privacy.card import guarantee, rounded
from skdpbayes.privacy.report import finite


@dataclass(frozen=True)
class SelectionSpent:
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
    >>> search = DPRandomizedSearchCV(DPBetaBernoulli(), {"prior_b": [1, 9]}, epsilon=1.0, n_iter=2)
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
    def guarantee_holds(self) -> bool:
        """Whether nothing voids the guarantee."""
        return not self.voided_by

    @property
    def cumulative(self):
        """Raise: the cost of a search is no sum of steps, on which a second fit of its model could build.

        Raises
        ------
        ValueError
            Always.
        """
        raise ValueError(
            "The result of a private search cannot be fitted again, as its cost is no sum: clone it."
        )

    def to_json(self, indent: int | None = None) -> str:
        """Return the fields as strict JSON with sorted keys; infinity becomes the string ``"inf"``."""
        return json.dumps(finite(asdict(self)), sort_keys=True, indent=indent, allow_nan=False)

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
            f"({rounded(self.epsilon)}, {rounded(self.delta)})-DP, {self.adjacency} per {self.unit}: the best of some "
            f"{self.n_iter:g} runs, each with epsilon {rounded(self.run_epsilon)}, "
            f"{self.numerics} numerics{kept}"
        )

    def _repr_html_(self) -> str:
        rows = [
            ("adjacency", f"{self.adjacency}, per {self.unit}"),
            (
                "search",
                f"the best of some {self.n_iter:g} runs, each with epsilon {rounded(self.run_epsilon)}",
            ),
            ("numerics", self.numerics),
            ("randomness", "seeded" if self.seeded else "operating system"),
        ]
        if self.total_epsilon > self.epsilon:
            total = f"epsilon {rounded(self.total_epsilon)}, delta {rounded(self.total_delta, 3)}"
            rows.append(("with earlier searches", total))
        return guarantee(self.epsilon, self.delta, self.voided_by, rows)
