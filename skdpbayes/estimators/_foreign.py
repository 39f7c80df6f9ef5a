"""Parameters that an estimator does not take, most of them scikit-learn's, and what to use."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Self, TypeVar

_Fit = TypeVar("_Fit", bound=Callable[..., Any])

_SAMPLE_WEIGHT = {
    "sample_weight": "each record counts once, since the privacy of each is accounted for once"
}
_NO_STOP = "use n_steps: a stop that depends on the records would be a release"
_ROUNDS = {
    **_SAMPLE_WEIGHT,
    "max_iter": "use n_steps: the number of rounds is fixed beforehand, since each costs budget",
    "tol": _NO_STOP,
    "n_jobs": "a fit uses all cores",
    "warm_start": "a second fit is another release, and starts from the prior",
}
_BATCHES = {"batch_size": "use sampling_rate: the batch size over the number of records"}
_CLASSES = {
    "class_weight": "each record counts once; choose a threshold of predict_proba instead",
    "multi_class": "more than two classes have one multinomial model",
}
_NETWORK = {
    **_ROUNDS,
    **_BATCHES,
    "alpha": "use prior_scale: a smaller one shrinks weights as a larger alpha does",
    "learning_rate_init": "use learning_rate",
    "power_t": "use step_schedule",
    "momentum": "use sampler='sghmc' and friction, with solver='sgld'",
    "nesterovs_momentum": "use sampler='sghmc' and friction, with solver='sgld'",
    "shuffle": "each round draws its batch at random",
    "early_stopping": _NO_STOP,
    "validation_fraction": "scores of records would be releases: score public rows",
    "n_iter_no_change": _NO_STOP,
    "beta_1": "the optimiser is fixed",
    "beta_2": "the optimiser is fixed",
    "max_fun": "use n_steps",
}

FOREIGN: Mapping[str, Mapping[str, str]] = {
    "PrivateEstimator": _SAMPLE_WEIGHT,
    "FamilyEstimator": _ROUNDS | _BATCHES,
    "DPNumPyroModel": _ROUNDS | _BATCHES,
    "DPVariationalAutoencoder": _ROUNDS | _BATCHES,
    "DPStandardScaler": {**_SAMPLE_WEIGHT, "copy": "X is never changed"},
    "DPBayesianLogisticRegression": {
        **_ROUNDS,
        **_CLASSES,
        "C": "use prior_scale: C = prior_scale**2, exactly so with prior_df=None",
        "penalty": "use prior_df: None is a normal prior, the counterpart of 'l2'",
        "l1_ratio": "use prior_df: a small one, such as 3, has the heaviest tails",
        "dual": "there is one formulation",
        "intercept_scaling": "use intercept_scale, the prior scale of the intercept",
    },
    "DPHierarchicalLogisticRegression": {
        **_ROUNDS,
        **_CLASSES,
        "C": "use group_scale and prior_scale, the prior's standard deviations",
        "penalty": "use group_scale and prior_scale: the priors are normal",
    },
    "DPBayesianLinearRegression": {
        **_ROUNDS,
        "alpha": "use prior_precision, in half ranges of the columns and the response",
        "C": "use prior_precision, in half ranges of the columns and the response",
        "class_weight": "each record counts once",
        "alpha_1": "use prior_shape, of the residual variance",
        "alpha_2": "use prior_scale, of the residual variance",
        "lambda_1": "use prior_precision, which is fixed",
        "lambda_2": "use prior_precision, which is fixed",
        "alpha_init": "a fit starts from the prior",
        "lambda_init": "a fit starts from the prior",
        "compute_score": "the marginal likelihood of the training rows is not released",
        "copy_X": "X is never changed",
        "normalize": "use bounds, which set the units",
        "positive": "the prior of the coefficients is normal",
    },
    "DPGaussianMixture": {
        **_ROUNDS,
        "n_init": "use means_init: several starts would be several releases",
        "init_params": "use means_init, or leave the start to a private sketch",
        "precisions_init": "use means_init and weights_init",
        "weight_concentration_prior_type": "the prior of the weights is a Dirichlet distribution",
        "verbose_interval": "use verbose",
    },
    "DPLatentDirichletAllocation": {
        **_ROUNDS,
        **_BATCHES,
        "learning_method": "use sampling_rate: 1 is 'batch', less is 'online'",
        "learning_decay": "use sampling_rate and n_steps",
        "learning_offset": "use sampling_rate and n_steps",
        "evaluate_every": "the perplexity of the training documents is not released",
        "perp_tol": "use n_steps: a stop that depends on the documents would be a release",
        "total_samples": "the number of documents is that of X",
    },
    "DPBayesianMLPClassifier": _NETWORK | _CLASSES,
    "DPBayesianMLPRegressor": {**_NETWORK, "loss": "residuals are normal"},
    "DPSigmoidBeliefNet": {
        **_ROUNDS,
        **_BATCHES,
        "n_iter": "use n_steps: the number of rounds is fixed beforehand, since each costs budget",
        "learning_rate": "steps have the size that curvature gives them",
    },
    "DPRandomizedSearchCV": {
        "param_distributions": "use param_grid: candidates are a public grid",
        "cv": "use test_size: each run is scored once, on a random part of the rows",
        "refit": "the best run is the result, and is not fitted again",
        "n_jobs": "runs follow each other, and each uses all cores",
        "pre_dispatch": "runs follow each other",
        "verbose": "what a run prints would tell the runs apart",
        "error_score": "a run that fails has the worst score",
        "return_train_score": "the best score alone is released",
    },
}
"""What to use instead, by the name of our class and of the parameter."""


def refuse_foreign(cls: type, names: Iterable[str]) -> None:
    """Raise a `TypeError` for parameters of scikit-learn's that the class does not take.

    Parameters
    ----------
    cls : type
        Class of an estimator.
    names : iterable of str
        Names of the arguments of a call. Unknown ones that are not in `FOREIGN` pass.
    """
    known = next((FOREIGN[base.__name__] for base in cls.__mro__ if base.__name__ in FOREIGN), {})
    foreign = [name for name in names if name in known]
    if not foreign:
        return
    own = inspect.signature(cls).parameters
    told = [
        f"{cls.__name__} takes no {name!r}: {known[name]}." for name in foreign if name not in own
    ]
    if told:
        raise TypeError(" ".join(told))


class WithoutForeign:
    """Class whose constructor refuses parameters of scikit-learn's as `refuse_foreign` does."""

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        del args
        refuse_foreign(cls, kwargs)
        return super().__new__(cls)


def refusing_foreign(own_fit: _Fit) -> _Fit:
    """Method `fit` that refuses parameters of scikit-learn's as `refuse_foreign` does."""
    known = frozenset(inspect.signature(own_fit).parameters)

    @functools.wraps(own_fit)
    def fit(self: Any, X: Any, *y: Any, **named: Any) -> Any:
        refuse_foreign(type(self), named.keys() - known)
        return own_fit(self, X, *y, **named)

    return fit  # type: ignore[return-value]
