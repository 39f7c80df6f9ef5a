"""Base of the private estimators: read rows, plan, charge, run, set attributes."""

from __future__ import annotations

import functools
import json
import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self

import numpy as np
from sklearn.base import BaseEstimator, clone
from sklearn.callback import with_callbacks
from sklearn.utils import Tags, estimator_html_repr

from skdpbayes._version import __version__
from skdpbayes.checks import LongFitWarning, check_choice, check_number, warn_user
from skdpbayes.compilation import without_collection
from skdpbayes.declarations import public_schema
from skdpbayes.estimators._foreign import WithoutForeign, refuse_foreign, refusing_foreign
from skdpbayes.estimators._progress import Progress, WatchedMixin
from skdpbayes.execution import execution_in_force
from skdpbayes.facts import Facts, Shape
from skdpbayes.intake.persons import by_person, codes_of_persons
from skdpbayes.intake.reading import Reader, Rows, records_of
from skdpbayes.plans.settings import BEYOND_TABLES, SEEDED, Defaults, Settings, Task
from skdpbayes.privacy import NoisyCount, PrivacyLeakWarning, PrivacySpent

if TYPE_CHECKING:
    from skdpbayes.mechanism.checkpoint import Checkpoint
    from skdpbayes.mechanism.records import Records
    from skdpbayes.mechanism.shards import Devices
    from skdpbayes.mechanism.stored import StoredRecords
    from skdpbayes.plans.plan import Plan

_USUAL = 0.95  # share of records that can be used
_MOST_ROWS = 384  # of a person, in one chunk of a batch
_LONG = 120.0  # seconds of a fit, by a rough guess, from which on it warns
_SURE = 4.0  # standard deviations below that share, from which on a fit warns


class Outcome(NamedTuple):
    """Result of a run: functions of releases, public values and the solver key.

    Attributes
    ----------
    state : pytree
        Final state of the solver.
    rng : numpy.random.Generator
        Generator of posterior draws.
    usable : NoisyCount or None
        Noisy number of records that can contribute.
    """

    state: Any
    rng: np.random.Generator
    usable: NoisyCount | None


Runner = Callable[["PrivateEstimator", "Plan", Rows], Outcome]
_RUNNER: ContextVar[Runner] = ContextVar(
    "runner", default=lambda estimator, plan, rows: estimator._charged_run(plan, rows)
)


@contextmanager
def runs_by(runner: Runner) -> Iterator[None]:
    """Fits of this context end in `runner`, in the place of a charge and a run: for audits."""
    token = _RUNNER.set(runner)
    try:
        yield
    finally:
        _RUNNER.reset(token)


def draws_rng(solver_keys: Any) -> np.random.Generator:
    """Generator of posterior draws; it depends on the solver keys alone, which may be released."""
    import jax

    return np.random.default_rng(np.asarray(jax.random.key_data(solver_keys)).ravel())


def diagram_and_card(estimator: Any) -> str:
    """HTML for notebooks: scikit-learn's diagram and, after `fit`, cost and usable records."""
    shown = {name: getattr(estimator, name, None) for name in ("privacy_spent_", "usable_records_")}
    html = estimator_html_repr(estimator)
    if shown["privacy_spent_"] is not None:
        html += shown["privacy_spent_"]._repr_html_()
    if shown["usable_records_"] is not None:
        html += f"<div>usable records: {shown['usable_records_']}</div>"
    return html


class PrivateEstimator(WithoutForeign, WatchedMixin, BaseEstimator):
    """Base of the private estimators: `fit` reads, plans, charges, runs and finishes.

    A subclass says how rows are read (`_reader`), which model they are for (`_task`), and which
    attributes follow from a run (`_finish`). Only the reader sees rows.
    """

    _html_repr = diagram_and_card

    _record = "row"  # the unit of privacy
    _defaults = Defaults()
    _fixed: ClassVar[dict[str, Any]] = {}  # settings of the plan that are no parameters
    _costly_records = False  # whether empty slots of a batch are expensive
    _fitted: tuple[str, ...] = ("n_iter_", "usable_records_")
    # Scores by which a private search may compare models, the default first.
    _scorings: tuple[str, ...] = ()
    # Parameters that None takes from the rows, which voids the guarantee.
    _declared: tuple[str, ...] = ()

    # Solvers that could take the model but are not offered, with the reason.
    _refused: ClassVar[dict[str, str]] = {}
    _automatic: ClassVar[tuple[str, ...]] = ()  # values of `solver`: facts or the model decide

    @property
    def _privacy_unit(self) -> str:
        """The unit of privacy."""
        return "person" if self._by_person else self._record

    @property
    def _by_person(self) -> bool:
        return self._parameters().get("max_rows_per_person") is not None

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "fit" in vars(cls):
            cls.fit = refusing_foreign(cls.fit)

    def set_params(self, **params: Any) -> Self:
        """Set parameters; those that scikit-learn alone has raise a `TypeError`."""
        refuse_foreign(type(self), params)
        return super().set_params(**params)

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        tags.input_tags.sparse = True
        tags.input_tags.string = True
        return tags

    # ------------------------------------------------------------- of subclasses

    @classmethod
    def _model_types(cls) -> tuple[type, ...]:
        """Classes of the models that this estimator plans."""
        raise NotImplementedError

    def _check_parameters(self) -> None:
        """Raise a `ValueError` for parameters out of range."""
        own = self._parameters()
        check_number("epsilon", own["epsilon"], 0)
        check_number("delta", own["delta"], 0, 1, open_above=True)
        check_choice("adjacency", own["adjacency"], ("zero_out", "add_remove", "replace_one"))
        check_choice("numerics", own["numerics"], ("secure", "fast"))
        check_ledger(own["ledger"])
        most = own.get("max_rows_per_person")
        check_number(
            "max_rows_per_person", most, 1, _MOST_ROWS, none=True, integral=True, closed=True
        )
        rate, norm = own.get("sampling_rate"), own.get("clipping_norm")
        check_number("sampling_rate", rate, 1e-6, 1, none=True, closed=True)
        check_number("n_steps", own.get("n_steps"), 0, 2**31 - 2, none=True, integral=True)
        check_number("clipping_norm", norm, 1e-30, 1e30, none=True)

    def _check_solver(self) -> None:
        """Raise a `ValueError` unless the solver is one that is offered."""
        solver = self._parameters()["solver"]
        if isinstance(solver, str) and solver in self._refused:
            raise ValueError(self._refused[solver])
        check_choice("solver", solver, (*self._automatic, *solvers_of(type(self))))

    def _reader(self) -> Reader:
        """Reader of the rows."""
        raise NotImplementedError

    def _task(self, facts: Facts) -> Task:
        """Model and public bounds."""
        raise NotImplementedError

    def _also_public(self, facts: Facts, model: Any) -> dict[str, Any]:
        """Entries of the report's public facts, beside shapes and parameters."""
        del facts, model
        return {}

    def _finish(self, plan: Plan, outcome: Outcome) -> None:
        """Set the fitted attributes."""
        raise NotImplementedError

    def _log_density(self, X: Any, y: Any) -> np.ndarray:
        """Log predictive density of each record, per column."""
        del y
        return self.score_samples(X) / self.n_features_in_

    def _log_volume(self, facts: Facts) -> float:
        """Log volume of the range whose uniform density a search compares with the model's."""
        del facts
        return 0.0

    # --------------------------------------------------------------------- plans

    def plan(
        self,
        n_rows: int | None = None,
        n_features: int | None = None,
        *,
        feature_names: Sequence[str] | None = None,
    ) -> Plan:
        """Plan of a fit to a table of this shape; it reads no rows and spends nothing.

        Parameters
        ----------
        n_rows : int, default=None
            Number of rows. None if ``adjacency="add_remove"`` keeps it private.
        n_features : int, default=None
            Number of columns. None takes it from `feature_names`, or from a parameter that declares
            each column.
        feature_names : sequence of str, default=None
            Names of the columns; needed if bounds are given by column name.

        Returns
        -------
        Plan
            Model, solver, mechanism and report of the fit.

        Raises
        ------
        ValueError
            For parameters out of range; for shapes that are missing or contradict the declared
            columns; for a parameter that would be taken from the rows.
        """
        return self._plan_of(self._shape(n_rows, n_features, feature_names))

    def _plan_of(self, shape: Shape) -> Plan:
        """Plan of a fit to a table of this shape."""
        self._check_parameters()
        return self._planned(self._reader().declared(shape))

    def _shape(
        self, n_rows: int | None, n_features: int | None, feature_names: Sequence[str] | None
    ) -> Shape:
        if n_rows is None and self._parameters()["adjacency"] != "add_remove":
            raise ValueError("n_rows is needed: only adjacency='add_remove' keeps it private.")
        check_number("n_rows", n_rows, 1, none=True, integral=True, closed=True)
        names = None if feature_names is None else tuple(map(str, feature_names))
        given = {
            "n_features": n_features,
            "feature_names": None if names is None else len(names),
            "the declared columns": self._reader().width(),
        }
        widths = {name: width for name, width in given.items() if width is not None}
        if not widths:
            raise ValueError("n_features is needed: no parameter declares the columns.")
        width = next(iter(widths.values()))
        check_number("n_features", width, 1, integral=True, closed=True)
        if len(set(widths.values())) > 1:
            raise ValueError(f"These numbers of columns differ: {widths}.")
        return Shape(None if n_rows is None else int(n_rows), int(width), names)

    @without_collection()
    def _planned(self, facts: Facts) -> Plan:
        """Plan of a fit, from public facts alone."""
        from skdpbayes.plans.plan import make_plan
        from skdpbayes.plans.registry import check_special
        from skdpbayes.plans.report import Told

        own = self._parameters()
        if own["adjacency"] == "add_remove":  # nothing may depend on the number of rows
            facts = replace(facts, shape=replace(facts.shape, n_rows=None))
        task = self._task(facts)
        told = Told(
            estimator=type(self).__name__,
            unit=self._privacy_unit,
            public=self._public(facts, task.model),
            schema=public_schema(own.values()),
            seeded=own["random_state"] is not None,
            voided_by=facts.voided_by + task.voided_by,
            earlier=vars(self).get("privacy_spent_"),  # `clone` starts afresh
        )
        settings = self._settings(facts)
        if task.solver is not None and settings.solver in self._automatic:
            check_special(task.solver, own)
            settings = replace(settings, solver=task.solver)

        def made_up(n_rows: int) -> Records:
            reader, owner = self._reader(), clone(self)
            if not self._by_person:
                return reader.read(owner, *reader.made_up(n_rows, facts.shape)).pack()
            most = int(own["max_rows_per_person"])
            rows = reader.read(owner, *reader.made_up(n_rows * most, facts.shape))
            return by_person(rows, np.repeat(np.arange(n_rows), most), most).pack()

        costly = task.costly or self._costly_records
        plan = make_plan(settings, facts, task, told, made_up, costly=costly)
        return replace(plan, hints=tuple(self._hints(plan)))

    def _settings(self, facts: Facts) -> Settings:
        """Parameters as plans read them."""
        del facts
        return Settings.of(self._parameters(), self._defaults)

    def _hints(self, plan: Plan) -> Iterator[str]:
        """Reasons, from public facts, for which the fit will hardly learn anything."""
        del plan
        return iter(())

    @classmethod
    def _get_param_names(cls) -> list[str]:
        return list(cls._names_of_parameters())

    @classmethod
    @functools.cache  # a fit asks for them a dozen times
    def _names_of_parameters(cls) -> tuple[str, ...]:
        return tuple(super()._get_param_names())

    def _parameters(self) -> dict[str, Any]:
        """Parameters by name, also those that the constructor of a subclass passes on."""
        own = {name: x for name, x in vars(self).items() if name[0] != "_" and name[-1] != "_"}
        return {**self.get_params(deep=False), **own, **self._fixed}

    def _public(self, facts: Facts, model: Any) -> dict[str, Any]:
        """Public facts of the report: parameters, and shapes as far as the adjacency allows."""
        public = {"n_features": facts.n_features} if facts.n_features else {}
        public |= self._also_public(facts, model)
        if facts.n_rows is not None:
            public["n_persons" if self._by_person else "n_samples"] = int(facts.n_rows)
        if self._by_person:
            public["max_rows_per_person"] = int(self._parameters()["max_rows_per_person"])
        return public | {"hyper-parameters": "all constructor parameters"}

    def _undeclared(self) -> list[str]:
        """Names of the parameters that would be taken from the rows."""
        return [name for name in self._declared if self._parameters()[name] is None]

    # ---------------------------------------------------------------------- fits

    def _prepared(self, X: Any, y: Any = None, groups: Any = None) -> tuple[Plan, Rows]:
        """The plan that follows from the rows' public facts, and the rows."""
        self._check_parameters()
        rows = self._reader().read(self, X, y)
        assert rows.facts.n_rows is not None
        person = self._persons_of(groups, rows.facts.n_rows)
        devices = devices_in_force()
        if devices is not None and devices.n_processes > 1:
            rows = _of_all_processes(devices, rows)
        if person is not None:
            rows = by_person(rows, person, int(self._parameters()["max_rows_per_person"]))
        return self._planned(rows.facts), rows

    def _persons_of(self, groups: Any, n_rows: int) -> np.ndarray | None:
        """Codes of the persons that rows are of; None if the unit of privacy is the row."""
        if (groups is None) is self._by_person:
            raise ValueError(
                "groups and max_rows_per_person go together: max_rows_per_person=10, say, makes a "
                "person the unit of privacy, and fit(X, y, groups=persons) says whose each row is. "
                "Pipelines and searches of scikit-learn take groups by the name of a step: "
                "fit(X, y, model__groups=persons)."
            )
        return None if groups is None else codes_of_persons(groups, n_rows)

    def _fit(self, X: Any, y: Any = None, groups: Any = None) -> None:
        """Read rows, plan, charge, run and set the fitted attributes."""
        plan, rows = self._prepared(X, y, groups)
        outcome = _RUNNER.get()(self, plan, rows)
        self._warn_if_few_are_usable(plan.facts, outcome.usable)
        self._adopt(plan, outcome)

    def _charged_run(self, plan: Plan, rows: Rows) -> Outcome:
        """Charge the ledger, forget an earlier fit, and run; what goes on has been charged."""
        checkpoint, devices = self._checkpoint(plan), devices_in_force()
        if devices is not None:
            from skdpbayes.mechanism.shards import refuse_undivided

            refuse_undivided(plan.made_up(2))
            devices.agree(_digest(plan))
        saved = None if checkpoint is None else checkpoint.load()
        has_paid = saved is not None and self._has_paid(saved.paid)
        if not has_paid:
            self._warn_if_long(plan)
            self._charge(plan.report)
        if checkpoint is not None:
            checkpoint.paid = saved.paid if saved and has_paid else (self._entries() or [""])[-1]
        self._warn_before(plan)
        if self._parameters().get("verbose"):
            print(f"[{type(self).__name__}] {plan.solver_name}: {plan.report!r}")
            for hint in plan.hints:
                print(f"[{type(self).__name__}] {hint}")
        for name in self._fitted:  # an interrupted refit leaves no old model beside a new report
            self.__dict__.pop(name, None)
        self.privacy_spent_ = plan.report  # before the first noise: an interrupted fit counts
        outcome = self._run(plan, rows, checkpoint)
        if checkpoint is not None:
            checkpoint.delete()
        return outcome

    def _adopt(self, plan: Plan, outcome: Outcome) -> None:
        """Set all fitted attributes, from the plan and the outcome of its run."""
        self.privacy_spent_, self.usable_records_ = plan.report, outcome.usable
        self._finish(plan, outcome)

    def _charge(self, report: PrivacySpent) -> None:
        """Charge the ledger in force, if there is one, before the fit spends."""
        from skdpbayes.privacy.ledger import ledger_in_force

        ledger, devices = ledger_in_force(self.ledger), devices_in_force()

        def charge() -> None:
            if ledger is not None:
                ledger.charge(
                    report.releases,
                    adjacency=report.adjacency,
                    unit=report.unit,
                    label=type(self).__name__,
                    voided_by=report.voided_by,
                )

        charge() if devices is None else devices.once(charge)

    def _checkpoint(self, plan: Plan) -> Checkpoint | None:
        """Checkpoint in force; fits of a search, which are many, have none."""
        from skdpbayes.mechanism.checkpoint import refuse_unbound
        from skdpbayes.privacy.ledger import Prepaid

        checkpoint = None if isinstance(self.ledger, Prepaid) else checkpoint_in_force()
        if checkpoint is not None:
            refuse_unbound((plan.model, plan.solver))
        return checkpoint

    def _entries(self) -> list[str] | None:
        """Entries of the ledger in force, as JSON; None without a ledger."""
        from skdpbayes.privacy.ledger import ledger_in_force

        ledger = ledger_in_force(self.ledger)
        # A ledger of another make need only be charged.
        known = getattr(ledger, "entries", ())
        own = [json.dumps(entry, sort_keys=True, default=str) for entry in known]
        return None if ledger is None else own

    def _has_paid(self, entry: str) -> bool:
        """Whether the ledger in force, if there is one, has an entry."""
        entries = self._entries()
        return entries is None or entry in entries

    @with_callbacks
    def _run(self, plan: Plan, rows: Rows, checkpoint: Checkpoint | None = None) -> Outcome:
        """Draw the keys, pack the rows and run the plan."""
        import jax

        from skdpbayes.inference import run
        from skdpbayes.mechanism.keys import key_material, keys_of
        from skdpbayes.mechanism.private_sum import noisy_count
        from skdpbayes.mechanism.shards import divided

        devices, records = devices_in_force(), records_of(rows)
        saved = None if checkpoint is None else checkpoint.saved
        if saved is None:
            material = key_material(self.random_state, plan.spec.n_chains)
        else:
            material = saved.material
        if devices is not None:
            material = devices.from_first(material)
        if checkpoint is not None:
            checkpoint.begin(material, _digest(plan, material, records))
        keys = keys_of(material, plan.spec.n_chains)
        assert records.usable is not None
        total = sum if devices is None else devices.total
        usable = noisy_count(keys.counting, records.usable, plan.spec, total)
        verbose = bool(self._parameters().get("verbose"))
        progress = Progress(self, plan.spec.n_chains * plan.n_steps, verbose=verbose)
        records = replace(records, slots=plan.slots)
        how = (keys, plan.model, plan.solver, plan.spec)
        state, _ = run(*how, divided(devices, records), watch=progress, checkpoint=checkpoint)
        progress.finish()
        return Outcome(jax.device_get(state), draws_rng(keys.solver), usable)

    def _warn_if_long(self, plan: Plan) -> None:
        """Warn before the charge if the fit will take minutes, by public numbers alone."""
        seconds = plan.rough_seconds()
        if seconds is not None and seconds > _LONG:
            warn_user(
                f"This fit of {plan.spec.n_chains * plan.n_steps} rounds may take about "
                f"{seconds / 60:.0f} minutes, by a rough guess from public numbers. "
                "plan(...).expected_seconds() measures; verbose=1, where there is one, and "
                "sklearn.callback.ProgressBar show progress. Fewer steps, a smaller sampling_rate "
                "or a smaller model take less time.",
                LongFitWarning,
            )

    def _warn_before(self, plan: Plan) -> None:
        from skdpbayes.privacy.ledger import Prepaid

        # Searches and checks seed their fits themselves, and show none of these warnings.
        own_seed = self.random_state is not None and not isinstance(self.ledger, Prepaid)
        if own_seed and not _warned:
            _warned.append("seed")
            warn_user(
                f"{SEEDED}. Use random_state=None for a fit that is released. (This is said once.)",
                PrivacyLeakWarning,
            )
        if BEYOND_TABLES in plan.report.voided_by and math.isfinite(self.epsilon):
            warn_user(
                "The guarantee is void: the tables of exact noise cannot account for "
                f"epsilon={self.epsilon:g} at delta={self.delta:g}. At delta=1e-5 they can up to "
                "about 28; epsilon=inf is a fit without privacy.",
                PrivacyLeakWarning,
            )
        n = plan.facts.n_rows
        if n is not None and self.delta >= 1 / max(n, 1):
            warn_user(
                f"delta={self.delta:g} is not below one over the number of {self._privacy_unit}s "
                f"({n}): it allows a fit that publishes some {self._privacy_unit}. "
                "Take a smaller one.",
                UserWarning,
            )

    def _warn_if_few_are_usable(self, facts: Facts, usable: NoisyCount | None) -> None:
        """Warn if the noisy count of usable records is far below the public number of records."""
        n = facts.n_rows
        if usable is None or n is None:
            return
        if usable.estimate < _USUAL * n - _SURE * usable.std:
            warn_user(
                f"About {usable} of {n} {self._privacy_unit}s can be used. The others hold missing "
                "or unreadable cells (such as text in a column that was not encoded), or labels or "
                "categories that were not declared: check `classes` (spelling counts), the "
                "preparation of columns and units of `bounds`, or see "
                "skdpbayes.preprocessing.check_data (not private).",
                UserWarning,
            )

    def __getstate__(self) -> dict[str, Any]:
        """State for pickling; an unfitted estimator takes the open ledger to other processes."""
        from skdpbayes.privacy.ledger import ledger_to_take_along

        state = super().__getstate__()
        if self.ledger is None and "privacy_spent_" not in vars(self):
            state["ledger"] = ledger_to_take_along()
        return state | {"_skdpbayes_version": __version__}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore a pickled state, with a warning if another version saved it."""
        saved, own = state.get("_skdpbayes_version"), __version__
        if saved != own:
            warnings.warn(
                f"This {type(self).__name__} was saved by skdpbayes {saved} and is read by {own}: "
                "it may not work, or give other results. Read it with the version that saved it; "
                "to fit again is another release.",
                UserWarning,
                stacklevel=2,
            )
        super().__setstate__(
            {name: value for name, value in state.items() if name != "_skdpbayes_version"}
        )


def devices_in_force() -> Devices | None:
    """Devices over which records are divided, as `skdpbayes.execution` says."""
    wanted = execution_in_force().devices
    if wanted is None:
        return None
    from skdpbayes.mechanism.shards import Devices

    return Devices.of(wanted)


def refuse_several_processes(what: str) -> None:
    """Raise a `ValueError` where a fit would be that of several processes."""
    devices = devices_in_force()
    if devices is not None and devices.n_processes > 1:
        raise ValueError(
            f"{what} runs in one process: each would draw numbers of its own. Use "
            "execution(devices=...) in one process on all its devices."
        )


def checkpoint_in_force() -> Checkpoint | None:
    """Checkpoint of the fits of a `skdpbayes.execution`."""
    own = execution_in_force()
    if own.checkpoint is None:
        return None
    from skdpbayes.mechanism.checkpoint import Checkpoint

    refuse_several_processes("A fit with a checkpoint")
    return Checkpoint(own.checkpoint, own.every)


def _digest(
    plan: Plan, material: bytes = b"", records: Records | StoredRecords | None = None
) -> bytes:
    """What binds a checkpoint to a fit; without keys and rows, what processes must agree in."""
    from skdpbayes.mechanism.checkpoint import digest_of

    own, parts = (plan.model, plan.solver, plan.spec.traced()), records.parts if records else ()
    report = replace(plan.report, date="").to_json()  # what goes on, goes on later
    return digest_of(material, own, f"{report}{plan.spec!r}", parts)


def _of_all_processes(devices: Devices, rows: Rows) -> Rows:
    """Rows with the facts of those of all processes."""
    facts = rows.facts
    assert facts.n_rows is not None
    n = sum(devices.numbers(facts.n_rows))
    return rows._replace(facts=replace(facts, shape=replace(facts.shape, n_rows=n)))


def solvers_of(estimator: type[PrivateEstimator]) -> tuple[str, ...]:
    """Names of the solvers that an estimator offers, in the registry's order."""
    from skdpbayes.plans.registry import SOLVERS

    types = estimator._model_types()
    return tuple(
        name
        for name, entry in SOLVERS.items()
        if name not in estimator._refused and any(entry.way(own) for own in types)
    )


def check_ledger(ledger: Any) -> None:
    """Raise a `ValueError` unless the parameter `ledger` is None or can be charged."""
    if ledger is not None and not callable(getattr(ledger, "charge", None)):
        raise ValueError(f"ledger must be a PrivacyLedger or None, got {ledger!r}.")


_warned: list[str] = []
