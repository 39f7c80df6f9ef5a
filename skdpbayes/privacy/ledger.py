"""A budget that fits share: what they may spend in all, and who has spent what.

After each fit its user looks at the result and decides what to fit next, and at which epsilon. Composing privacy loss
distributions as if all steps had been fixed beforehand is then not a proof (two plans of delta 1.0e-5 each can give
1.67e-5, if results choose between them). A ledger counts in a currency that adds up whatever was chosen and why:
Renyi divergences at one order, fixed when the ledger is opened (a *Renyi filter*: Feldman and Zrnic 2021), or, if all
releases are of all records, squared ratios of sensitivity to noise (a *Gaussian filter*: Smith and Thakurta 2022). What
was fixed beforehand may be given as a plan, and is composed tightly.
"""

from __future__ import annotations

import contextlib
import json
import math
import sqlite3
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from ._card import card, rounded
from .accounting._steps import (
    GaussianSteps,
    as_steps,
    check_adjacency,
    check_delta,
    check_epsilon,
    merge,
)

_KEPT = 1 - 1e-9  # of the budget, for the finite arithmetic of fits (`lattice.overhead`) and of these sums
COMPOSITIONS = ("renyi", "gaussian", "plan")


class BudgetError(ValueError):
    """A fit would spend more than its ledger has left. Nothing was run and nothing was spent.

    Examples
    --------
    >>> from skdpbayes.privacy import BudgetError, GaussianSteps, PrivacyLedger
    >>> ledger = PrivacyLedger(epsilon=1.0, delta=1e-5)
    >>> try:
    ...     ledger.charge([GaussianSteps(1.0, 1.0, 1)])
    ... except BudgetError:
    ...     print(ledger.spent)
    0.0
    """


class PrivacyLedger:
    """A privacy budget for several fits on the same records.

    Give it to estimators (``ledger=``), or open it for a block of code (``with ledger:``). Each fit is charged before
    it draws any noise, and is refused with a `BudgetError` if that would exceed the budget.

    Parameters
    ----------
    epsilon, delta : float
        Budget of all fits together.
    adjacency : {"zero_out", "add_remove", "replace_one"}, default="zero_out"
        Of every fit: others are refused.
    unit : str, default="row"
        What a record is, in every fit: ``"row"``, or ``"document"`` for topics.
    composition : {"renyi", "gaussian", "plan"}, default="renyi"
        How spending adds up. ``"renyi"`` takes any fit; a single one can use about nine tenths of epsilon.
        ``"gaussian"`` loses nothing, and takes only fits all of whose releases are of all records
        (``sampling_rate=1``, which is the default for small tables and for `vips`). ``"plan"``: the steps of all fits
        are given by `plan`, and each fit has to be the next of them.
    plan : sequence of sequences of GaussianSteps, default=None
        For each fit, in this order, what it will release: ``privacy_spent_.steps`` of a fit to public or simulated rows
        with the same parameters.
    order : float, default=None
        Renyi order. None takes the one at which the budget buys most of releases of all records; releases of small
        samples may get more from a smaller one.
    path : str or path, default=None
        A file (sqlite3) in which spending is recorded, so that processes can share the budget and it outlives them. An
        existing file must have been made with the same parameters. None keeps it in memory: then a copy in another
        process refuses every fit.

    Raises
    ------
    ValueError
        If a parameter is out of range, or a plan exceeds the budget.

    Notes
    -----
    Copies are the ledger itself: ``clone``, ``deepcopy`` and cross-validation in one process share one budget.

    Examples
    --------
    >>> import numpy as np
    >>> from skdpbayes import DPBetaBernoulli
    >>> from skdpbayes.privacy import PrivacyLedger
    >>> X = np.random.default_rng(0).random((1000, 1)) < 0.3
    >>> ledger = PrivacyLedger(epsilon=1.0, delta=1e-5)
    >>> with ledger:
    ...     model = DPBetaBernoulli(epsilon=0.5).fit(X)
    >>> 0 < ledger.spent < 1
    True
    >>> ledger.affordable_epsilon() > 0.5
    True
    """

    def __init__(
        self,
        epsilon: float,
        delta: float,
        *,
        adjacency: str = "zero_out",
        unit: str = "row",
        composition: str = "renyi",
        plan: Iterable[Iterable[GaussianSteps]] | None = None,
        order: float | None = None,
        path: str | Path | None = None,
    ) -> None:
        if composition not in COMPOSITIONS:
            raise ValueError(f"composition must be one of {', '.join(map(repr, COMPOSITIONS))}, got {composition!r}.")
        if (plan is not None) != (composition == "plan"):
            raise ValueError("plan is needed with composition='plan', and with no other.")
        if order is not None and (composition != "renyi" or not 1 < order < math.inf):
            raise ValueError(f"order must be above 1, and needs composition='renyi', got {order!r}.")
        self.epsilon = check_epsilon(epsilon, positive=True)
        self.delta = check_delta(delta)
        self.adjacency = check_adjacency(adjacency)
        self.unit = str(unit)
        self.composition = composition
        self.plan = None if plan is None else tuple(merge(as_steps(steps)) for steps in plan)
        self.order = (_best_order(self.epsilon, self.delta) if order is None else float(order)) if self._renyi else None
        self.path = None if path is None else str(Path(path).absolute())
        self._limit = self._find_limit()
        self._store: _Memory | _File = _Memory() if self.path is None else _File(self.path, self._parameters())

    @property
    def _renyi(self) -> bool:
        return self.composition == "renyi"

    def _find_limit(self) -> float:
        from .accounting import compose
        from .accounting._gaussian import gaussian_mu

        if self.order is not None:
            limit = _limit_at(self.order, self.epsilon, self.delta)
            if limit <= 0:
                raise ValueError(f"At order={self.order:g} nothing can be spent within this budget; take a larger one.")
            return limit * _KEPT
        if self.plan is None:
            return gaussian_mu(self.epsilon, self.delta) ** 2 * _KEPT
        planned = compose([step for steps in self.plan for step in steps], self.adjacency).epsilon(self.delta)
        if planned > self.epsilon:
            raise ValueError(f"The plan spends epsilon={planned:.6g}, more than the budget of {self.epsilon:g}.")
        return float(len(self.plan))

    def _cost(self, steps: tuple[GaussianSteps, ...]) -> float:
        if any(step.noise_multiplier == 0 for step in steps):
            return math.inf
        if self.order is not None:
            from .accounting._rdp import step_rdp

            replace, orders = self.adjacency == "replace_one", (self.order,)
            costs = (s.steps * float(step_rdp(s.noise_multiplier, s.sampling_rate, replace, orders)[0]) for s in steps)
            return math.fsum(costs)
        if self.plan is not None:
            return 1.0
        if any(step.sampling_rate < 1 for step in steps):
            raise BudgetError(
                "A ledger with composition='gaussian' takes only fits with sampling_rate=1; open one with "
                "composition='renyi' for others."
            )
        distance = 2.0 if self.adjacency == "replace_one" else 1.0
        return math.fsum(s.steps * (distance / s.noise_multiplier) ** 2 for s in steps)

    def charge(self, steps: Any, *, adjacency: str = "zero_out", unit: str = "row", label: str = "") -> None:
        """Record spending, before it happens.

        Parameters
        ----------
        steps : GaussianSteps or sequence of GaussianSteps
        adjacency, unit : str
            With respect to which they are private.
        label : str
            What spends; for the table of entries.

        Raises
        ------
        BudgetError
            If more would be spent than there is, or adjacency and unit are not the ledger's. Nothing is recorded then.
        """
        steps = as_steps(steps)
        for name, given in (("adjacency", adjacency), ("unit", unit)):
            if given != getattr(self, name):
                raise BudgetError(
                    f"The ledger counts with {name}={getattr(self, name)!r} and cannot take a fit with "
                    f"{name}={given!r}: open another ledger, or change the fit."
                )
        cost = self._cost(steps)
        with self._store.exclusive() as entries:
            spent = math.fsum(entry["cost"] for entry in entries)
            if self.plan is not None and len(entries) < len(self.plan) and merge(steps) != self.plan[len(entries)]:
                raise BudgetError(
                    f"The next fit of the plan is {self.plan[len(entries)]}, and not {steps}. Fits of a plan come as "
                    "they were planned, in their order."
                )
            if not math.fsum((spent, cost)) <= self._limit:
                raise BudgetError(
                    f"{label or 'This fit'} would spend more than is left: {self._share(cost)} of the budget of "
                    f"epsilon={self.epsilon:g}, delta={self.delta:g}, of which "
                    f"{_percent(1 - spent / self._limit, up=False)} are left. Nothing was run. {self._advice()}"
                )
            self._store.add({"label": str(label), "cost": cost, "steps": [step.to_dict() for step in steps]})

    def _share(self, cost: float) -> str:
        return _percent(cost / self._limit)

    def _advice(self) -> str:
        if self.plan is not None:
            return "The plan is complete."
        left = rounded(self.affordable_epsilon(), up=False)
        return f"A fit on all rows may take epsilon={left} at delta={self.delta:g}."

    @property
    def entries(self) -> list[dict[str, Any]]:
        """What was charged: label, cost in the ledger's own currency, and steps."""
        return self._store.entries()

    @property
    def shares(self) -> list[tuple[str, float]]:
        """Label of each charge, and the share of the budget that it took, from 0 to 1."""
        return [(entry["label"], entry["cost"] / self._limit) for entry in self.entries]

    @property
    def spent(self) -> float:
        """Share of the budget that is spent, from 0 to 1."""
        return math.fsum(entry["cost"] for entry in self.entries) / self._limit

    @property
    def spent_epsilon(self) -> float:
        """Epsilon, at the ledger's delta, of all that was charged: what may be said now. Zero before the first fit."""
        from .accounting import compose
        from .accounting._gaussian import gaussian_epsilon
        from .accounting._rdp import rdp_epsilon

        entries = self.entries
        cost = math.fsum(entry["cost"] for entry in entries)
        if not entries:
            return 0.0
        if self.order is not None:
            import numpy as np

            return rdp_epsilon(np.array([cost]), self.delta, np.array([self.order]))
        if self.plan is None:
            return gaussian_epsilon(self.delta, math.sqrt(cost))
        return compose([step for steps in self.plan for step in steps], self.adjacency).epsilon(self.delta)

    def affordable_epsilon(self, delta: float | None = None, *, n_fits: int = 1) -> float:
        """Epsilon that a fit whose releases are of all rows may ask for, with what is left.

        Parameters
        ----------
        delta : float, default=None
            Of that fit; None takes the ledger's.
        n_fits : int, default=1
            So many fits share what is left, each with that epsilon.
        """
        if isinstance(n_fits, bool) or n_fits != int(n_fits) or n_fits < 1:
            raise ValueError(f"n_fits must be a whole number, at least 1, got {n_fits!r}.")
        from .accounting._gaussian import gaussian_epsilon

        if self.plan is not None:
            raise ValueError("A plan leaves no choice: see `plan` for what its next fit is.")
        left = max(0.0, self._limit - math.fsum(entry["cost"] for entry in self.entries)) * (1 - 1e-9)
        # An order's divergence of a Gaussian release is order * mu^2 / 2, and the filter of Gaussian ones counts mu^2.
        square = (left if self.order is None else 2 * left / self.order) / n_fits
        return (
            gaussian_epsilon(self.delta if delta is None else check_delta(delta), math.sqrt(square)) if square else 0.0
        )

    # Where it is in force

    def __enter__(self) -> PrivacyLedger:
        with _LOCK:
            _OPEN.append(self)
        return self

    def __exit__(self, *error: object) -> None:
        with _LOCK:
            _OPEN.remove(self)

    def __copy__(self) -> PrivacyLedger:
        return self

    def __deepcopy__(self, memo: Any) -> PrivacyLedger:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return _opened_again, (self._parameters(), self.path)

    # As text

    def _parameters(self) -> dict[str, Any]:
        plan = None if self.plan is None else [[step.to_dict() for step in steps] for steps in self.plan]
        names = ("epsilon", "delta", "adjacency", "unit", "composition", "order")
        return {name: getattr(self, name) for name in names} | {"plan": plan}

    def to_json(self) -> str:
        """Parameters and entries as JSON."""
        return json.dumps({"ledger": self._parameters(), "entries": self.entries}, indent=2)

    @classmethod
    def from_json(cls, text: str) -> PrivacyLedger:
        """A ledger in memory that goes on from one that was written by `to_json`.

        Two ledgers from one text do not know of each other: for a budget that is shared, take `path`.
        """
        content = json.loads(text)
        ledger = cls(**_given(content["ledger"]))
        for entry in content["entries"]:
            ledger.charge(
                [GaussianSteps(**step) for step in entry["steps"]],
                adjacency=ledger.adjacency,
                unit=ledger.unit,
                label=entry["label"],
            )
        return ledger

    def __repr__(self) -> str:
        path = "" if self.path is None else f", path={self.path!r}"
        return (
            f"PrivacyLedger(epsilon={self.epsilon:g}, delta={self.delta:g}, adjacency={self.adjacency!r}, "
            f"unit={self.unit!r}, composition={self.composition!r}{path})"
        )

    def _repr_html_(self) -> str:
        spent = self.spent
        rows = [(label, _percent(share)) for label, share in self.shares]
        rows.append(("left", _percent(max(0.0, 1 - spent), up=False)))
        what = f"budget, {self.adjacency} per {self.unit}"
        state = f"{_percent(spent)} spent: epsilon {rounded(self.spent_epsilon)}"
        return card(self.epsilon, self.delta, what, state, rows)


def active_ledger() -> PrivacyLedger | None:
    """The ledger that was opened last by ``with``, in any thread of this process, if one is open."""
    with _LOCK:
        return _OPEN[-1] if _OPEN else None


_LOCK = threading.Lock()
_OPEN: list[PrivacyLedger] = []


def _percent(share: float, *, up: bool = True) -> str:
    return f"{rounded(100 * share, 3, up=up)}%"


def _given(parameters: dict[str, Any]) -> dict[str, Any]:
    plan = parameters["plan"]
    return parameters | {"plan": plan and [[GaussianSteps(**step) for step in steps] for steps in plan]}


def _opened_again(parameters: dict[str, Any], path: str | None) -> PrivacyLedger:
    ledger = PrivacyLedger(**_given(parameters), path=path)
    if path is None:
        ledger._store = _Elsewhere()
    return ledger


def _limit_at(order: float, epsilon: float, delta: float) -> float:
    """Largest Renyi divergence at an order that implies (epsilon, delta) (Canonne, Kamath and Steinke 2020)."""
    return epsilon - math.log1p(-1 / order) + (math.log(delta) + math.log(order)) / (order - 1)


def _best_order(epsilon: float, delta: float) -> float:
    """The order that allows most: of Gaussian releases, whose divergence is proportional to it."""
    from scipy.optimize import minimize_scalar

    found = minimize_scalar(
        lambda log: -_limit_at(1 + math.exp(log), epsilon, delta) / (1 + math.exp(log)),
        bounds=(-6, 14),
        method="bounded",
    )
    return 1 + math.exp(float(found.x))


def stored_json(path: str | Path) -> str:
    """What `PrivacyLedger.to_json` gives of the ledger in a file, which stays as it is; of other files their text."""
    path = Path(path)
    with path.open("rb") as file:
        if file.read(16) != b"SQLite format 3\0":
            return path.read_text("utf-8")
    with contextlib.closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as database:
        database.execute("BEGIN")  # one state of the file
        (parameters,) = database.execute("SELECT parameters FROM ledger").fetchone()
        return json.dumps({"ledger": json.loads(parameters), "entries": _File._read(database)})


class _Memory:
    """Entries of this process."""

    def __init__(self) -> None:
        self._entries: list[dict[str, Any]] = []
        self._lock = threading.Lock()

    def entries(self) -> list[dict[str, Any]]:
        return [dict(entry) for entry in self._entries]

    @contextlib.contextmanager
    def exclusive(self) -> Iterator[list[dict[str, Any]]]:
        with self._lock:
            yield self._entries

    def add(self, entry: dict[str, Any]) -> None:
        self._entries.append(entry)


class _Elsewhere(_Memory):
    """Of a copy in another process, which cannot know what is spent."""

    @contextlib.contextmanager
    def exclusive(self) -> Iterator[list[dict[str, Any]]]:
        raise BudgetError(
            "This is a copy of a ledger that another process keeps in memory: it cannot tell what is left. Open the "
            "ledger with a path, which processes can share."
        )
        yield []


class _File:
    """Entries in a file, one transaction for each charge."""

    def __init__(self, path: str, parameters: dict[str, Any]) -> None:
        self._path, self._local = path, threading.local()
        text = json.dumps(parameters, sort_keys=True)
        with self.exclusive():
            database = self._local.database
            database.execute("CREATE TABLE IF NOT EXISTS ledger (parameters TEXT)")
            database.execute("CREATE TABLE IF NOT EXISTS entries (id INTEGER PRIMARY KEY, entry TEXT)")
            found = database.execute("SELECT parameters FROM ledger").fetchone()
            if found is None:
                database.execute("INSERT INTO ledger VALUES (?)", (text,))
            elif found[0] != text:
                raise ValueError(f"{path} is a ledger with other parameters: {found[0]}.")

    @contextlib.contextmanager
    def exclusive(self) -> Iterator[list[dict[str, Any]]]:
        database = sqlite3.connect(self._path, timeout=60, isolation_level=None)
        self._local.database = database
        try:
            database.execute("BEGIN IMMEDIATE")
            try:
                yield self._read(database)
            except BaseException:
                database.execute("ROLLBACK")
                raise
            database.execute("COMMIT")
        finally:
            self._local.database = None
            database.close()

    def entries(self) -> list[dict[str, Any]]:
        with contextlib.closing(sqlite3.connect(self._path, timeout=60)) as database:
            return self._read(database)

    @staticmethod
    def _read(database: sqlite3.Connection) -> list[dict[str, Any]]:
        if not database.execute("SELECT 1 FROM sqlite_master WHERE name = 'entries'").fetchone():
            return []
        return [json.loads(text) for (text,) in database.execute("SELECT entry FROM entries ORDER BY id")]

    def add(self, entry: dict[str, Any]) -> None:
        self._local.database.execute("INSERT INTO entries (entry) VALUES (?)", (json.dumps(entry),))
