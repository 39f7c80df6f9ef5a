"""Private inference for models that users write in NumPyro."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable
from dataclasses import replace
from functools import lru_cache

import numpy as np
from scipy import sparse, special
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_is_fitted, validate_data

from skdpbayes.cells import parsed
from skdpbayes.checks import check_number
from skdpbayes.estimators._gradient import PLANS, Bounds, GradientEstimator, n_parameters
from skdpbayes.intake.labels import as_labels, is_sequence
from skdpbayes.intake.rows import as_numeric, check_table, dense, refuse_text_columns

_SHARE = 0.05  # of the budget, of the release that finds the clipping norm
_MANY = 100  # records; that many are no table of groups
_BLOCK = 1024  # records of a prediction at a time
_LEARNING_RATE = 0.1  # of a guide of the user's
_SHORTENED = 0.5  # clipping norm under noise, over the median of norms rounded up to a power of two
_CALM = 80  # records for each parameter, as far as the learning rate goes


class ProgramEstimator(GradientEstimator):
    """Base of estimators whose model is a NumPyro program."""

    _solvers: tuple[str, ...] = ("dpvi", "na-dpvi", "sgld")
    _full_rank_up_to = 100
    _curvature_up_to = 300
    _fitted = (*GradientEstimator._fitted, "posterior_samples_", "_model")

    def _fit_program(self, fields, public, program, *, voided_by=(), **facts):
        """Fit `program`, a function of the arrays `fields` and of `public`; `facts` are public, too."""
        from skdpbayes.models.numpyro.program import Program
        from skdpbayes.models.numpyro.reading import read_model
        from skdpbayes.models.numpyro.reduced import reduced
        from skdpbayes.models.score_unit import WithScoreUnit

        constants, public = _separated(public)
        shapes = tuple(
            (name, tuple(x.shape[1:]), _typed(x[:0]).dtype.name) for name, x in fields.items()
        )
        model, held = read_model(Program(program, shapes, tuple(constants.items())), public)
        n = next(iter(fields.values())).shape[0]
        factor = (
            _SHORTENED if math.isfinite(self.epsilon) else 64.0
        )  # without noise hardly anything is to be clipped
        # In fewer coordinates the intervals of na-dpvi, which takes flat directions for well known,
        # are too narrow.
        whole = callable(self.guide) or self.solver == "na-dpvi"
        learnt = model if whole else reduced(model)
        opened = WithScoreUnit(learnt, self.clipping_norm is None, np.float32(factor))
        norm = self.clipping_norm or 1.0
        # For curvature stands Fisher's information of scores of that norm; it limits steps.
        bounds = Bounds(
            math.inf,
            math.inf,
            1.0,
            typical=(norm, 0.75 * norm**2),
            clip=norm,
            mean_curvature=(norm / factor) ** 2,
        )
        draws = self._fit_posterior(
            opened,
            bounds,
            n,
            lambda: _packed(fields),
            public=self._public_facts(n, **facts),
            voided_by=(*voided_by, *_holds_records(self, held, fields)),
        )
        self._model = model
        self.posterior_samples_ = model.constrained(draws)
        return self

    def sample_posterior(self, n_samples=1000, random_state=None):
        """Fresh posterior draws, a dict like `posterior_samples_`.

        Parameters
        ----------
        n_samples : int, default=1000
        random_state : None, int or numpy.random.Generator
        """
        check_is_fitted(self)
        return self._model.constrained(
            self.posterior_.sample(np.random.default_rng(random_state), n_samples)
        )

    def _report_clipping_norm(self, solver):
        return (
            None if self.clipping_norm is None else float(self.clipping_norm)
        )  # None: found by the opening

    def _plan_solver(self, model, bounds, n):
        from skdpbayes.solvers.dpvi import FullRank
        from skdpbayes.solvers.opened import Opened

        openings = (_SHARE,) * len(model.openings())
        plan = _plan_own_guide if callable(self.guide) else PLANS[self.solver]
        if self.n_steps is not None and self.n_steps <= len(openings):
            raise ValueError(
                f"n_steps={self.n_steps} is too few: the first finds the clipping norm."
            )
        if openings and self.solver == "sgld" and self.n_chains > 1:
            raise ValueError(
                "The clipping norm is found in one chain: with n_chains above 1, pass clipping_norm."
            )
        solver, spec = plan(self, model.marginal(model.init()), bounds, n, openings)
        if isinstance(getattr(solver, "guide", None), FullRank):
            # Which part of the records tells of a parameter is not known, as it is in a regression:
            # so steps are such that noise spreads iterates by no more than about the prior where it
            # alone holds them.
            solver = replace(
                solver,
                n_records=np.minimum(
                    solver.n_records, np.float32(_CALM * n_parameters(model.model))
                ),
            )
        return Opened(solver, np.int32(len(openings))), spec


def _own_copy(guide, program):
    """A copy, as guides of NumPyro keep what they are first called with.

    Raises
    ------
    ValueError
        If the guide has been called: it keeps records, and starts where they led it.
    """
    if getattr(guide, "prototype_trace", None) is not None:
        raise ValueError(
            f"The guide has been used, and holds the data of that use: pass a new {type(guide).__name__}."
        )
    return _copied(guide, program)


@lru_cache(maxsize=32)
def _copied(guide, program):
    """One for each model and guide: another would be compiled anew."""
    del program
    return copy.deepcopy(guide)


def _holds_records(estimator, constants, fields):
    """Reasons to think that what is called public, or the model or guide itself, holds records."""
    held = {
        f"public[{name!r}]": value
        for name, value in (getattr(estimator, "public", None) or {}).items()
    }
    held |= {f"an array that the model closes over (shape {x.shape})": x for x in constants}
    n = next(iter(fields.values())).shape[0]
    for name, value in held.items():
        array = (
            np.asarray(value)
            if hasattr(value, "__array__") or isinstance(value, list)
            else np.zeros(())
        )
        shared = any(
            not sparse.issparse(x) and np.may_share_memory(array, x) for x in fields.values()
        )
        as_long = (
            estimator.adjacency != "add_remove"
            and n >= _MANY
            and array.ndim > 0
            and len(array) == n
        )
        if shared or as_long:
            yield f"{name} seems to hold records: it is as long as the data, or a part of them"


def _plan_own_guide(estimator, model, bounds, n, openings=()):
    from skdpbayes.models.numpyro.guide import read_guide
    from skdpbayes.solvers.own_guide import OwnGuide

    n_steps, batch = estimator._n_rounds(openings)
    opening, steps, _ = estimator._plan_round_noise(
        openings, n_steps, estimator._sampling_rate(n, batch)
    )
    guide = read_guide(_own_copy(estimator.guide, model.program), model)
    rate = estimator.learning_rate or _LEARNING_RATE
    return OwnGuide(guide, np.float32(rate), np.float32(bounds.clip)), estimator._spec(
        opening + steps
    )


def _separated(public):
    """Arguments that shape a model, and those that are numbers in it: another one compiles nothing."""
    constants, arrays = {}, {}
    for name, value in public.items():
        if isinstance(value, np.integer):  # which shapes may depend on
            constants[name] = int(value)
        elif isinstance(value, float | list) or hasattr(value, "__array__"):
            arrays[name] = _typed(np.asarray(value))
        else:
            constants[name] = value
    return constants, arrays


def _array(name, value, width=None):
    """An array of numbers; cells that are none become NaN. A list X has a public `width`.

    Raises
    ------
    ValueError
        For what is public: a dtype that holds no numbers, no axis of records.
    """
    refuse_text_columns(value)
    if sparse.issparse(value) or hasattr(value, "columns"):
        return as_numeric(value)
    # Whether a list is one of rows must not depend on what a record holds. Dtypes of data frames'
    # own become others where one value is missing, and what has none gets one from its values:
    # these are read item by item, as floats.
    if is_sequence(value) and name == "X":
        return as_numeric(value, width)
    if isinstance(value, Iterable) and not isinstance(getattr(value, "dtype", None), np.dtype):
        return parsed(as_labels(value if hasattr(value, "dtype") else list(value)))
    array = np.asarray(value)
    if array.ndim == 2 or array.dtype.kind == "c":
        check_table(array)
    if array.ndim == 0 or array.dtype.kind not in "fiubO":
        raise ValueError(
            f"{name} must be an array of numbers with an axis of records, got dtype {array.dtype} and shape "
            f"{array.shape}. Encode text by public categories, as skdpbayes.preprocessing.CategoryEncoder does."
        )
    return parsed(array) if array.dtype.kind == "O" else array


def _packed(fields):
    from skdpbayes.intake.packing import finite_rows, pack_records

    typed = {name: _typed(x) for name, x in fields.items()}
    finite = [finite_rows(x) for x in typed.values()]  # negative integers are no nulls here
    return pack_records(usable=np.logical_and.reduce(finite), **typed)


def _typed(x):
    """In single precision, 32 bits or as a Boolean, element by element."""
    if x.dtype.kind == "b":
        return x
    with np.errstate(all="ignore"):
        if x.dtype.kind == "f":
            return x.astype(np.float32)
        edges = np.iinfo(np.int32)
        return np.clip(x, edges.min, edges.max).astype(np.int32)


def _named(function):
    return getattr(function, "__qualname__", type(function).__name__)


def _has_few_values(estimator):
    if hasattr(estimator, "_model") and not estimator._model.program.support:
        raise AttributeError(
            "predict_proba needs a response of few values, as of a Bernoulli distribution."
        )
    return hasattr(estimator, "_model")


class DPNumPyroModel(ProgramEstimator):
    """A Bayesian model written in NumPyro, fitted under (epsilon, delta)-differential privacy.

    Parameters
    ----------
    model : callable
        A NumPyro model with its records in one plate: ``model(X, y)``, or ``model(X)``, with the
        arrays that are given to `fit`, or with their names if those are in a dict; and with
        `public`. It is called on a batch of one record at a time, and on records of zeros. The
        plate must be as large as the batch, as ``numpyro.plate("data", len(X))`` is.
        ``docs/numpyro.md`` says what cannot be private, and is refused.
    guide : {"auto", "full_rank", "mean_field"} or callable, default="auto"
        Of `dpvi`: a normal posterior, full rank up to 100 parameters; or a guide of yours, or one
        of `numpyro.infer.autoguide`, for the latent sites. A guide of yours is fitted as it is: its
        spread does not include the privacy noise, that of the others does.
    epsilon : float, default=1.0
        Privacy budget; ``float("inf")`` gives the non-private model.
    delta : float, default=1e-5
        Privacy failure probability; well below one over the number of records.
    solver : {"dpvi", "na-dpvi", "sgld"}, default="dpvi"
        As in `DPBayesianLogisticRegression`. "na-dpvi" takes each prior for a normal one, of its
        quantiles.
    public : dict, default=None
        Arguments of the model that are public and no records: tables of groups, sizes,
        hyper-parameters. Arrays, lists and floats are given as arrays, other values as they are.
    adjacency : {"zero_out", "add_remove", "replace_one"}, default="zero_out"
        What "with respect to one record" means.
    numerics : {"secure", "fast"}, default="secure"
        Integer sums and integer noise, or floating-point ones, for which the guarantee is
        idealised.
    ledger : PrivacyLedger, default=None
        Budget that is charged, and may refuse the fit. None: the one opened by ``with``, if any.
    clipping_norm : float, default=None
        l2 bound on the gradient of a record's log-likelihood in coordinates in which each prior is
        standard normal. None: half the median norm at the centre of the prior, rounded up to a
        power of two, found by one release at 5% of the budget.
    sampling_rate, n_steps, learning_rate, step_schedule, n_chains, n_posterior_samples,
    random_state, verbose
        As in `DPBayesianLogisticRegression`.

    Attributes
    ----------
    posterior_samples_ : dict
        Arrays of `n_posterior_samples` draws of each latent site, and of deterministic ones that
        depend on no record: what `numpyro.infer.Predictive` takes.
    posterior_
        Posterior over the coordinates, ravelled by the sites' names.
    privacy_spent_ : PrivacySpent
        What the fit cost and under which conditions it holds.
    usable_records_ : NoisyCount
        Noisy number of records that count: those without missing cells or unknown labels.
    diagnostics_ : dict
        Of the solver.
    n_iter_ : int
        Rounds run.
    n_features_in_, feature_names_in_
        As everywhere in scikit-learn, where X is a table.

    Notes
    -----
    No record raises: one whose log-likelihood is not a number, or has no gradient, contributes
    nothing.

    The idea is that of d3p (Prediger et al. 2021), which clips the gradient of the whole evidence
    bound in the parameters of the guide; here the gradient in the latent sites is released, and
    prior, entropy and guide are outside of clipping and noise.

    Examples
    --------
    >>> import numpy as np, numpyro, numpyro.distributions as dist
    >>> from skdpbayes import DPNumPyroModel
    >>> def model(x, y=None):
    ...     w = numpyro.sample("w", dist.Normal(0, 1).expand([x.shape[1]]).to_event(1))
    ...     with numpyro.plate("data", len(x)):
    ...         numpyro.sample("y", dist.Poisson(numpyro.deterministic("rate", jnp.exp(x @ w))), obs=y)
    >>> import jax.numpy as jnp
    >>> X = np.random.default_rng(0).normal(size=(2000, 2))
    >>> y = np.random.default_rng(1).poisson(np.exp(X @ [0.5, -0.5]))
    >>> fitted = DPNumPyroModel(model, epsilon=1.0, random_state=0).fit(X, y)
    >>> bool(abs(fitted.posterior_samples_["w"].mean(axis=0) - [0.5, -0.5]).max() < 0.2)
    True
    """

    def __init__(
        self,
        model,
        guide="auto",
        *,
        epsilon=1.0,
        delta=1e-5,
        solver="dpvi",
        public=None,
        adjacency="zero_out",
        numerics="secure",
        ledger=None,
        clipping_norm=None,
        sampling_rate=None,
        n_steps=None,
        learning_rate=None,
        step_schedule="constant",
        n_chains=1,
        n_posterior_samples=1000,
        random_state=None,
        verbose=0,
    ):
        self.model = model
        self.guide = guide
        self.epsilon = epsilon
        self.delta = delta
        self.solver = solver
        self.public = public
        self.adjacency = adjacency
        self.numerics = numerics
        self.ledger = ledger
        self.clipping_norm = clipping_norm
        self.sampling_rate = sampling_rate
        self.n_steps = n_steps
        self.learning_rate = learning_rate
        self.step_schedule = step_schedule
        self.n_chains = n_chains
        self.n_posterior_samples = n_posterior_samples
        self.random_state = random_state
        self.verbose = verbose

    _record = "record"

    def fit(self, X, y=None):
        """Fit the posterior to private records.

        Parameters
        ----------
        X : array of shape (n_records, ...), data frame, sparse matrix, or dict of arrays and lists
            Those of a dict have a common first axis; a list in it is one of numbers.
        y : array of shape (n_records, ...) or list of numbers, default=None
            The second argument of the model, if X is not a dict.

        Returns
        -------
        self

        Raises
        ------
        ValueError
            For parameters out of range, for shapes and dtypes, and for what of the model cannot be
            private, by the name of its site. Never for what a record holds.
        """
        self._check_solver_parameters()
        if not callable(self.model):
            raise ValueError(f"model must be a function, a NumPyro model, got {self.model!r}.")
        fields = self._fields(X, y, reset=True)
        if self.public is not None and not isinstance(self.public, dict):
            raise ValueError(
                f"public must be a dict of arguments of the model, got {self.public!r}."
            )
        # Names alone: what they stand for is public by declaration.
        facts = {
            name: f"{_named(value)}, and all that it holds" for name, value in self._code().items()
        }
        return self._fit_program(
            fields, self.public or {}, self.model, **facts, arguments=sorted(self.public or {})
        )

    def _code(self):
        return {"model": self.model} | ({"guide": self.guide} if callable(self.guide) else {})

    def _check_guide(self):
        if not callable(self.guide):
            super()._check_guide()

    def _fields(self, X, y=None, *, reset):
        """Arrays of the records by their names, or places, as arguments."""
        if isinstance(X, dict) and not sparse.issparse(X):  # which one format is
            if y is not None:
                raise ValueError(
                    "X is a dict of the model's arguments: put y into it, by its name in the model."
                )
            if not X or not all(isinstance(name, str) and name.isidentifier() for name in X):
                raise ValueError(f"X as a dict must name arguments of the model, got {list(X)}.")
            fields = {name: _array(f"X[{name!r}]", value) for name, value in X.items()}
        else:
            fields = {"0": _array("X", X, None if reset else getattr(self, "n_features_in_", None))}
            if fields["0"].ndim == 2:
                validate_data(
                    self,
                    X if hasattr(X, "columns") else fields["0"],
                    skip_check_array=True,
                    reset=reset,
                )
            if y is not None:
                fields["1"] = _array("y", y)
        lengths = {name: x.shape[0] for name, x in fields.items()}
        if len(set(lengths.values())) != 1:
            raise ValueError(
                f"Found input variables with inconsistent numbers of samples: {list(lengths.values())}."
            )
        if not all(lengths.values()):
            raise ValueError("Found array with 0 sample(s) while a minimum of 1 is required.")
        return fields

    # --------------------------------------------------------------- predicting

    _scorings = ("log_density",)

    def _log_density(self, X, y):
        return self.log_predictive_density(X, y)

    def log_predictive_density(self, X, y=None):
        """Log posterior predictive density of each record.

        Parameters
        ----------
        X, y
            As in `fit`; not protected.

        Returns
        -------
        log_density : array of shape (n_records,)
        """
        from skdpbayes.models.numpyro.predict import log_densities

        fields = self._fields(X, y, reset=False)
        log = np.concatenate(list(self._in_blocks(log_densities, fields)), axis=1)
        return special.logsumexp(log, axis=0) - math.log(len(log))

    def score(self, X, y=None):
        """Mean of `log_predictive_density`."""
        return float(np.mean(self.log_predictive_density(X, y)))

    def predict(self, X):
        """Posterior predictive mean of the response, or its most probable value if it has few.

        Parameters
        ----------
        X : array-like, or dict of array-likes
            As in `fit`, without the response, for which the model must take None; not protected.

        Returns
        -------
        response : array of shape (n_records, ...)
        """
        mean = self._mean_response(X)
        support = self._model.program.support
        return np.array(support)[mean.argmax(axis=-1)] if support else mean

    @available_if(_has_few_values)
    def predict_proba(self, X):
        """Posterior predictive probabilities of the response's values, (n_records, n_values), if it has few."""
        return self._mean_response(X)

    def _mean_response(self, X):
        from skdpbayes.models.numpyro.predict import mean_response

        check_is_fitted(self)
        if len(self._model.program.observed) != 1:
            raise ValueError(
                f"The model observes {', '.join(self._model.program.observed)}: take sample_posterior_predictive."
            )
        return np.concatenate(list(self._in_blocks(mean_response, self._fields(X, reset=False))))

    def _in_blocks(self, function, fields):
        """Results of a function of the model, posterior draws and a batch, for blocks of records."""
        check_is_fitted(self)
        draws = {
            site.name: self.posterior_samples_[site.name] for site in self._model.program.sites
        }
        n = next(iter(fields.values())).shape[0]
        for start in range(0, n, _BLOCK):
            own = {name: dense(x[start : start + _BLOCK]) for name, x in fields.items()}
            result = np.asarray(
                function(self._model, draws, {name: _typed(x) for name, x in own.items()})
            )
            yield result

    def sample_posterior_predictive(self, X, n_samples=100, random_state=None):
        """Draws of the observed sites for the records of X, each with another posterior draw.

        Parameters
        ----------
        X : array-like, or dict of array-likes
            As in `fit`, without the response, for which the model must take None; not protected.
        n_samples : int, default=100
        random_state : None, int or numpy.random.Generator

        Returns
        -------
        draws : dict of arrays of shape (n_samples, n_records, ...)
        """
        import jax
        from numpyro.infer import Predictive

        check_is_fitted(self)
        check_number("n_samples", n_samples, 0, integral=True)
        fields = {name: _typed(dense(x)) for name, x in self._fields(X, reset=False).items()}
        program = self._model.program
        rng = np.random.default_rng(random_state)
        # Not the first of `posterior_samples_`: those of a chain are neighbours.
        drawn = self.sample_posterior(n_samples, rng)
        latent = {site.name: drawn[site.name] for site in program.sites}
        of = Predictive(lambda: program.call(fields, self._model.public), latent, parallel=True)
        return {
            n: np.asarray(x)
            for n, x in of(jax.random.key(rng.integers(2**31))).items()
            if n in program.observed
        }
