"""A budget that fits share: what they may spend in all, and who has spent what.

After each fit its user looks at the result and decides what to fit next, and at which epsilon.
Composing privacy loss distributions as if all steps had been fixed beforehand is then not a proof
(two plans of delta 1.0e-5 each can give 1.67e-5, if results choose between them). A ledger counts
in a currency that adds up whatever was chosen and why: Renyi divergences at one order, fixed when
the ledger is opened (a *Renyi filter*: Feldman and Zrnic 2021), or, if all releases are of all
records, squared ratios of sensitivity to noise (a *Gaussian filter*: Smith and Thakurta 2022). What
was fixed beforehand may be given as a plan, and is composed tightly.

The first fit of a Renyi ledger may use all of epsilon, although its divergence then exceeds the
filter's limit. *Proof.* The first charge is fixed before any release, so which of two cases holds
does not depend on the records. If its divergence exceeds the limit, no other charge is ever
accepted, since divergences only add up: that one mechanism is all that is released, and it was
accepted for its exact composition, which holds for steps that are fixed beforehand. If not, all
charges together stay within the limit, and the filter's theorem holds for them, the first included.
QED
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import sqlite3
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from skdpbayes._version import __version__
from skdpbayes.privacy import open_ledgers
from skdpbayes.privacy.accounting._steps import (
    GaussianSteps,
    as_steps,
    check_adjacency,
    check_delta,
    check_epsilon,
    merge,
)
from skdpbayes.privacy.card import card, rounded
from skdpbayes.privacy.report import now

if TYPE_CHECKING:
    from skdpbayes.privacy.accounting import Selection

_KEPT = (
    1 - 1e-9
)  # of the budget, for the finite arithmetic of fits (`lattice.overhead`) and of these sums
_MOST = 1e300  # a divergence that is written down: JSON has no infinity
COMPOSITIONS = ("renyi", "gaussian", "plan")
_SINCE_FIRST: dict[str, Any] = {
    "version": None,
    "when": None,
    "voided_by": [],
}  # keys that old entries lack


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

    Give it to estimators (``ledger=``), or open it for a block of code (``with ledger:``). Each fit
    is charged before it draws any noise, and is refused with a `BudgetError` if that would exceed
    the budget.

    Parameters
    ----------
    epsilon, delta : float
        Budget of all fits together.
    adjacency : {"zero_out", "add_remove", "replace_one"}, default="zero_out"
        Of every fit: others are refused.
    unit : str, default="row"
        What a record is, in every fit: ``"row"``, or ``"document"`` for topics.
    composition : {"renyi", "gaussian", "plan"}, default="renyi"
        How spending adds up. ``"renyi"`` takes any fit and any private search; the first can use
        all of epsilon if no other is to follow, and about nine tenths otherwise. ``"gaussian"``
        loses nothing, and takes only fits all of whose releases are of all records
        (``sampling_rate=1``, which is the default for small tables and for `vips`). ``"plan"``: the
        steps of all fits are given by `plan`, and each fit has to be the next of them.
    plan : sequence of sequences of GaussianSteps, default=None
        For each fit, in this order, what it will release: ``privacy_spent_.releases`` of a fit to
        public or simulated rows with the same parameters.
    order : float, default=None
        Renyi order. None takes the one at which the budget buys most of releases of all records;
        releases of small samples may get more from a smaller one.
    path : str or path, default=None
        A file (sqlite3) in which spending is recorded, so that processes can share the budget and
        it outlives them. An existing file must have been made with the same parameters. None keeps
        it in memory: then a copy in another process refuses every fit.

    Raises
    ------
    ValueError
        If a parameter is out of range, or a plan exceeds the budget.

    Notes
    -----
    Copies are the ledger itself: ``clone``, ``deepcopy`` and cross-validation in one process share
    one budget. Parameters are read-only.

    ``with ledger:`` is for the code of the block, in its thread or asyncio task. Threads that are
    started in it do not inherit it, and their fits are refused: give the estimator the ledger, open
    it in the thread, or run the thread in ``contextvars.copy_context()``. Worker processes are
    charged too if one ledger with a `path` is open, and refused otherwise. Workers that are no
    descendants of this process, such as those of a cluster, know nothing of it: give them a ledger
    with a path.

    Examples
    --------
    >>> import numpy as np
    >>> from skdpbayes import DPBetaBernoulli
    >>> from skdpbayes.privacy import PrivacyLedger
    >>> X = np.random.default_rng(0).random((1000, 1)) < 0.3
    >>> ledger = PrivacyLedger(epsilon=1.0, delta=1e-5)
    >>> with ledger:
    ...     model = DPBetaBernoulli(epsilon=0.5).fit(X)
    >>> ledger  # doctest: +ELLIPSIS
    PrivacyLedger(epsilon=1, delta=1e-05, zero_out per row; spent epsilon=0.4998, left 0.7...)
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
            raise ValueError(
                f"composition must be one of {', '.join(map(repr, COMPOSITIONS))}, got {composition!r}."
            )
        if (plan is not None) != (composition == "plan"):
            raise ValueError("plan is needed with composition='plan', and with no other.")
        if order is not None and (composition != "renyi" or not 1 < order < math.inf):
            raise ValueError(
                f"order must be above 1, and needs composition='renyi', got {order!r}."
            )
        self.epsilon = check_epsilon(epsilon, positive=True)
        self.delta = check_delta(delta)
        self.adjacency = check_adjacency(adjacency)
        self.unit = str(unit)
        self.composition = composition
        self.plan = None if plan is None else tuple(merge(as_steps(steps)) for steps in plan)
        self.order = (
            (_best_order(self.epsilon, self.delta) if order is None else float(order))
            if self._renyi
            else None
        )
        self.path = None if path is None else str(Path(path).absolute())
        self._limit = self._find_limit()
        self._store: _Memory | _File = (
            _Memory() if self.path is None else _File(self.path, self._parameters())
        )

    def __setattr__(self, name: str, value: Any) -> None:
        if name in self.__dict__:
            raise AttributeError(f"{name} of a ledger is read-only: open another ledger.")
        super().__setattr__(name, value)

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"{name} of a ledger is read-only: open another ledger.")

    @property
    def _renyi(self) -> bool:
        return self.composition == "renyi"

    def _find_limit(self) -> float:
        from skdpbayes.privacy.accounting import compose
        from skdpbayes.privacy.accounting._gaussian import gaussian_mu

        if self.order is not None:
            limit = _limit_at(self.order, self.epsilon, self.delta)
            if limit <= 0:
                raise ValueError(
                    f"At order={self.order:g} nothing can be spent within this budget; take a larger one."
                )
            return limit * _KEPT
        if self.plan is None:
            return gaussian_mu(self.epsilon, self.delta) ** 2 * _KEPT
        planned = compose([step for steps in self.plan for step in steps], self.adjacency).epsilon(
            self.delta
        )
        if planned > self.epsilon:
            raise ValueError(
                f"The plan spends epsilon={planned:.6g}, more than the budget of {self.epsilon:g}."
            )
        return float(len(self.plan))

    def _cost(self, spending: tuple[GaussianSteps, ...] | Selection) -> float:
        from skdpbayes.privacy.accounting import Selection

        runs = spending.runs if isinstance(spending, Selection) else (spending,)
        if any(step.noise_multiplier == 0 for steps in runs for step in steps):
            return math.inf
        if isinstance(spending, Selection):
            if self.order is None:
                raise BudgetError(
                    f"A ledger with composition={self.composition!r} cannot take a private search, whose cost is no "
                    "sum of steps; open one with composition='renyi'."
                )
            return spending.divergence(self.order, self.adjacency)
        if self.order is not None:
            from skdpbayes.privacy.accounting._rdp import rdp_at

            return rdp_at(spending, self.order, self.adjacency)
        if self.plan is not None:
            return 1.0
        if any(step.sampling_rate < 1 for step in spending):
            raise BudgetError(
                "A ledger with composition='gaussian' takes only fits with sampling_rate=1; open one with "
                "composition='renyi' for others."
            )
        distance = 2.0 if self.adjacency == "replace_one" else 1.0
        return math.fsum(s.steps * (distance / s.noise_multiplier) ** 2 for s in spending)

    def _alone(self, spending: tuple[GaussianSteps, ...] | Selection) -> float:
        """Epsilon, at the ledger's delta, if that is all that is ever released."""
        from skdpbayes.privacy.accounting import Selection, compose

        if isinstance(spending, Selection):
            return spending.epsilon(self.delta, self.adjacency)
        return compose(spending, self.adjacency).epsilon(self.delta)

    def charge(
        self,
        steps: GaussianSteps | Iterable[GaussianSteps] | Selection,
        *,
        adjacency: str = "zero_out",
        unit: str = "row",
        label: str = "",
        voided_by: Iterable[str] = (),
    ) -> None:
        """Record spending, before it happens.

        Parameters
        ----------
        steps : GaussianSteps, sequence of GaussianSteps, or Selection
        adjacency, unit : str
            With respect to which they are private.
        label : str
            Who spends: estimators give the name of their class.
        voided_by : sequence of str
            Reasons for which the guarantee of what spends is void. The budget's is void then, too.

        Raises
        ------
        BudgetError
            If more would be spent than there is, or adjacency and unit are not the ledger's.
            Nothing is recorded then.
        """
        from skdpbayes.privacy.accounting import Selection

        for name, given in (("adjacency", adjacency), ("unit", unit)):
            if given != getattr(self, name):
                raise BudgetError(
                    f"The ledger counts with {name}={getattr(self, name)!r} and cannot take a fit with "
                    f"{name}={given!r}: open another ledger, or change the fit."
                )
        about = {
            "label": str(label),
            "version": __version__,
            "when": now(),
            "voided_by": [str(why) for why in voided_by],
        }
        self._record(steps if isinstance(steps, Selection) else as_steps(steps), about)

    def _record(
        self, spending: tuple[GaussianSteps, ...] | Selection, about: dict[str, Any]
    ) -> None:
        from skdpbayes.privacy.accounting import Selection

        cost = self._cost(spending)
        may_be_first = (
            self._renyi and self._limit < cost and self._alone(spending) <= self.epsilon * _KEPT
        )
        with self._store.exclusive() as entries:
            spent = _cost_of(entries)
            if (
                self.plan is not None
                and not isinstance(spending, Selection)
                and len(entries) < len(self.plan)
            ):
                planned = self.plan[len(entries)]
                if merge(spending) != planned:
                    raise BudgetError(
                        f"The next fit of the plan is {planned}, and not {spending}. Fits of a plan come as they were "
                        "planned, in their order."
                    )
            if not (math.fsum((spent, cost)) <= self._limit or (may_be_first and not entries)):
                raise BudgetError(
                    f"{about['label'] or 'This fit'} would spend more than is left: {self._share(cost)} of the budget "
                    f"of epsilon={self.epsilon:g}, delta={self.delta:g}, of which "
                    f"{_percent(max(0.0, 1 - spent / self._limit), up=False)} is left. Nothing was run. "
                    f"{self._advice()}"
                )
            entry = about | {"cost": min(cost, _MOST), "steps": []}
            if isinstance(spending, Selection):
                entry["selection"] = spending.to_dict()
            else:
                entry["steps"] = [step.to_dict() for step in spending]
            self._store.add(entry)

    def _share(self, cost: float) -> str:
        return _percent(cost / self._limit)

    def _advice(self) -> str:
        if self.plan is not None:
            return "The plan is complete."
        left = self.affordable_epsilon()
        if not left:
            return "Nothing is left for another fit."
        return (
            f"A fit on all rows may take epsilon={rounded(left, up=False)} at delta={self.delta:g}."
        )

    @property
    def entries(self) -> list[dict[str, Any]]:
        """Charges, one dict each.

        Keys: ``label``, ``version`` (of the package), ``steps`` or the ``selection`` of a private
        search, ``when`` (UTC, ISO 8601), ``cost`` in the ledger's own currency, and ``voided_by``.
        Version and time are None in entries of versions that did not record them.
        """
        return [_SINCE_FIRST | entry for entry in self._store.entries()]

    @property
    def voided_by(self) -> tuple[str, ...]:
        """Reasons why the budget's guarantee is void, each with the label of its entry."""
        given = (
            f"{entry['label'] or 'a fit'}: {why}"
            for entry in self.entries
            for why in entry["voided_by"]
        )
        return tuple(dict.fromkeys(given))

    @property
    def guarantee_holds(self) -> bool:
        """Whether nothing voids the guarantee."""
        return not self.voided_by

    @property
    def shares(self) -> list[tuple[str, float]]:
        """Label of each charge, and the share of the budget that it took, from 0 to 1."""
        return [(entry["label"], min(1.0, entry["cost"] / self._limit)) for entry in self.entries]

    @property
    def spent(self) -> float:
        """Share of the budget that is spent, from 0 to 1: all of it if the first fit leaves nothing for others."""
        return min(1.0, _cost_of(self.entries) / self._limit)

    @property
    def spent_epsilon(self) -> float:
        """Epsilon, at the ledger's delta, of all that was charged: what may be said now. Zero before the first fit.

        A single charge has the epsilon of its exact composition; several have the epsilon that the
        filter's sum implies.
        """
        from skdpbayes.privacy.accounting import compose
        from skdpbayes.privacy.accounting._gaussian import gaussian_epsilon
        from skdpbayes.privacy.accounting._rdp import rdp_epsilon

        entries = self.entries
        if not entries:
            return 0.0
        if self._renyi and len(entries) == 1:  # nothing was chosen after looking yet
            return self._alone(_spending(entries[0]))
        if self.order is not None:
            import numpy as np

            return rdp_epsilon(np.array([_cost_of(entries)]), self.delta, np.array([self.order]))
        if self.plan is None:
            return gaussian_epsilon(self.delta, math.sqrt(_cost_of(entries)))
        return compose([step for steps in self.plan for step in steps], self.adjacency).epsilon(
            self.delta
        )

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
        if self.plan is not None:
            raise ValueError("A plan leaves no choice: see `plan` for what its next fit is.")
        from skdpbayes.privacy.accounting._gaussian import gaussian_epsilon, gaussian_mu

        entries = self.entries
        left = max(0.0, self._limit - _cost_of(entries)) * _KEPT
        # An order's divergence of a Gaussian release is order * mu^2 / 2, and the filter of
        # Gaussian ones counts mu^2.
        square = (left if self.order is None else 2 * left / self.order) / n_fits
        if self._renyi and not entries and n_fits == 1:  # the only one, if it takes all
            square = max(square, gaussian_mu(self.epsilon * _KEPT, self.delta) ** 2 * _KEPT)
        if not square:
            return 0.0
        return gaussian_epsilon(
            self.delta if delta is None else check_delta(delta), math.sqrt(square)
        )

    # Where it is in force

    def __enter__(self) -> PrivacyLedger:
        open_ledgers.enter(
            self, {"path": self.path, "parameters": self._parameters(), "key": id(self)}
        )
        return self

    def __exit__(self, *error: object) -> None:
        open_ledgers.leave(self)

    def __copy__(self) -> PrivacyLedger:
        return self

    def __deepcopy__(self, memo: Any) -> PrivacyLedger:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return _opened_again, (self._parameters(), self.path)

    # As text

    def _parameters(self) -> dict[str, Any]:
        plan = (
            None
            if self.plan is None
            else [[step.to_dict() for step in steps] for steps in self.plan]
        )
        names = ("epsilon", "delta", "adjacency", "unit", "composition", "order")
        return {name: getattr(self, name) for name in names} | {"plan": plan}

    def to_json(self) -> str:
        """Parameters and entries as JSON."""
        return json.dumps({"ledger": self._parameters(), "entries": self.entries}, indent=2)

    @classmethod
    def from_json(cls, text: str) -> PrivacyLedger:
        """A ledger in memory that goes on from one that was written by `to_json`.

        Two ledgers from one text do not know of each other: for a budget that is shared, take
        `path`.
        """
        content = json.loads(text)
        ledger = cls(**_given(content["ledger"]))
        for entry in content["entries"]:
            given = _SINCE_FIRST | entry
            ledger._record(
                _spending(entry), {name: given[name] for name in ("label", *_SINCE_FIRST)}
            )
        return ledger

    def __repr__(self) -> str:
        about = "" if self._renyi else f", composition={self.composition!r}"
        about += "" if self.path is None else f", path={self.path!r}"
        if isinstance(self._store, _Elsewhere):
            where = (
                "in the memory of another process"
                if self.path is None
                else "in a file that is not here"
            )
            state = f"kept {where}"
        else:
            left = (
                rounded(self.affordable_epsilon(), up=False)
                if self.plan is None
                else self._planned_left()
            )
            state = f"spent epsilon={rounded(self.spent_epsilon)}, left {left}"
        void = "" if self.guarantee_holds else f"; GUARANTEE VOID: {'; '.join(self.voided_by)}"
        return (
            f"PrivacyLedger(epsilon={self.epsilon:g}, delta={self.delta:g}, {self.adjacency} per {self.unit}{about}; "
            f"{state}{void})"
        )

    def _planned_left(self) -> str:
        plan = self.plan or ()
        return f"{len(plan) - len(self.entries)} of {len(plan)} planned fits"

    def _repr_html_(self) -> str:
        spent = self.spent
        rows = [(label, _percent(share)) for label, share in self.shares]
        rows.append(("left", _percent(max(0.0, 1 - spent), up=False)))
        what = f"budget, {self.adjacency} per {self.unit}"
        state = f"{_percent(spent)} spent: epsilon {rounded(self.spent_epsilon)}"
        if not self.guarantee_holds:
            state += "; guarantee void: " + "; ".join(self.voided_by)
        return card(self.epsilon, self.delta, what, state, rows, good=self.guarantee_holds)


class Prepaid:
    """Stands in for a ledger in the fits of a private search, whose cost was charged as a whole."""

    def __repr__(self) -> str:
        return "Prepaid()"

    def charge(self, *spending: Any, **about: Any) -> None:
        """Nothing more to record."""


def ledger_in_force(own: PrivacyLedger | None = None) -> PrivacyLedger | None:
    """The ledger that a fit has to charge: its own, or the one that this context opened last; None if none is open.

    Raises
    ------
    BudgetError
        If ledgers are open in other threads, or in processes above, and which of them to charge is
        not clear.
    """
    if own is not None:
        return own
    found = open_ledgers.innermost()
    if found is None:
        return None
    if isinstance(found, open_ledgers.Opened):
        return found.ledger
    if not found.processes:
        raise BudgetError(
            "A ledger is open in another thread, and this one has none: which budget the fit belongs to is not clear. "
            "Give the estimator ledger=..., open a ledger in this thread, or start the thread with "
            "contextvars.copy_context().run."
        )
    one, *others = found.descriptions
    if one["path"] is None or any(other["path"] != one["path"] for other in others):
        raise BudgetError(
            "This process was started by one in which a ledger is open that it cannot charge: it is kept in memory, or "
            "there are several. Give the estimator a ledger with a path, which processes can share."
        )
    return _opened_again(one["parameters"], one["path"])


def ledger_to_take_along() -> PrivacyLedger | None:
    """The ledger of this context, for an estimator that leaves for another process; None if it has none."""
    found = open_ledgers.innermost()
    return found.ledger if isinstance(found, open_ledgers.Opened) else None


def _spending(entry: dict[str, Any]) -> tuple[GaussianSteps, ...] | Selection:
    from skdpbayes.privacy.accounting import Selection

    if "selection" in entry:
        return Selection.from_dict(entry["selection"])
    return tuple(GaussianSteps(**step) for step in entry["steps"])


def _cost_of(entries: list[dict[str, Any]]) -> float:
    return math.fsum(entry["cost"] for entry in entries)


def _percent(share: float, *, up: bool = True) -> str:
    return f"{rounded(100 * share, 3, up=up)}%"


def _given(parameters: dict[str, Any]) -> dict[str, Any]:
    plan = parameters["plan"]
    return parameters | {
        "plan": plan and [[GaussianSteps(**step) for step in steps] for steps in plan]
    }


def _opened_again(parameters: dict[str, Any], path: str | None) -> PrivacyLedger:
    there = (
        path is not None and Path(path).is_file()
    )  # else a new file would have the whole budget once more
    ledger = PrivacyLedger(**_given(parameters), path=path if there else None)
    if not there:
        ledger.__dict__.update(
            path=path, _store=_Elsewhere(_IN_MEMORY if path is None else _NO_FILE.format(path))
        )
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
    """Text of `PrivacyLedger.to_json` for a ledger's file, which stays as it is; the text of any other file."""
    path = Path(path)
    with path.open("rb") as file:
        if file.read(16) != b"SQLite format 3\0":
            return path.read_text("utf-8")
    with contextlib.closing(
        sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)
    ) as database:
        database.execute("BEGIN")  # one state of the file
        (parameters,) = database.execute("SELECT parameters FROM ledger").fetchone()
        return json.dumps({"ledger": json.loads(parameters), "entries": _File._read(database)})


_IN_MEMORY = (
    "This is a copy of a ledger that another process keeps in memory: it cannot tell what is left. Open the ledger "
    "with a path, which processes can share."
)


_NO_FILE = "This is a copy of a ledger whose file, {}, is not here: it cannot tell what is left."


class _Memory:
    """Entries of this process."""

    def __init__(self) -> None:
        self._entries: list[dict[str, Any]] = []
        self._lock, self._process = threading.Lock(), os.getpid()

    def entries(self) -> list[dict[str, Any]]:
        return [dict(entry) for entry in self._entries]

    @contextlib.contextmanager
    def exclusive(self) -> Iterator[list[dict[str, Any]]]:
        if self._process != os.getpid():  # a fork, whose entries the other would never see
            raise BudgetError(_IN_MEMORY)
        with self._lock:
            yield self._entries

    def add(self, entry: dict[str, Any]) -> None:
        self._entries.append(entry)


class _Elsewhere(_Memory):
    """Of a copy in another process, which cannot know what is spent."""

    def __init__(self, why: str) -> None:
        super().__init__()
        self._why = why

    @contextlib.contextmanager
    def exclusive(self) -> Iterator[list[dict[str, Any]]]:
        raise BudgetError(self._why)
        yield []


class _File:
    """Entries in a file, one transaction for each charge."""

    def __init__(self, path: str, parameters: dict[str, Any]) -> None:
        self._path, self._local = path, threading.local()
        text = json.dumps(parameters, sort_keys=True)
        with self.exclusive():
            database = self._local.database
            database.execute("CREATE TABLE IF NOT EXISTS ledger (parameters TEXT)")
            database.execute(
                "CREATE TABLE IF NOT EXISTS entries (id INTEGER PRIMARY KEY, entry TEXT)"
            )
            found = database.execute("SELECT parameters FROM ledger").fetchone()
            if found is None:
                database.execute("INSERT INTO ledger VALUES (?)", (text,))
            elif found[0] != text:
                raise ValueError(
                    f"{path} is a ledger with other parameters: open it with these, or take another path: {found[0]}."
                )

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
        return [
            json.loads(text)
            for (text,) in database.execute("SELECT entry FROM entries ORDER BY id")
        ]

    def add(self, entry: dict[str, Any]) -> None:
        self._local.database.execute("INSERT INTO entries (entry) VALUES (?)", (json.dumps(entry),))
