"""Differentially private Bayesian models with scikit-learn's interface.

Importing this package loads neither JAX nor an accountant; they are loaded by the first `fit`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from skdpbayes._version import __version__ as __version__
from skdpbayes.execution import execution

__all__ = [
    "DPBayesianLinearRegression",
    "DPBayesianLogisticRegression",
    "DPBayesianMLPClassifier",
    "DPBayesianMLPRegressor",
    "DPBetaBernoulli",
    "DPDirichletCategorical",
    "DPGammaExponential",
    "DPGaussianMixture",
    "DPHierarchicalLogisticRegression",
    "DPLatentDirichletAllocation",
    "DPNumPyroModel",
    "DPSigmoidBeliefNet",
    "DPVariationalAutoencoder",
    "LongFitWarning",
    "Schema",
    "execution",
    "open_table",
    "read_csv",
    "set_compilation_cache",
]

if TYPE_CHECKING:
    from skdpbayes.checks import LongFitWarning
    from skdpbayes.compilation import set_compilation_cache
    from skdpbayes.estimators import (
        DPBayesianLinearRegression,
        DPBayesianLogisticRegression,
        DPBayesianMLPClassifier,
        DPBayesianMLPRegressor,
        DPBetaBernoulli,
        DPDirichletCategorical,
        DPGammaExponential,
        DPGaussianMixture,
        DPHierarchicalLogisticRegression,
        DPLatentDirichletAllocation,
        DPNumPyroModel,
        DPSigmoidBeliefNet,
        DPVariationalAutoencoder,
    )
    from skdpbayes.intake.arrow import open_table
    from skdpbayes.intake.files import read_csv
    from skdpbayes.schema import Schema


def __getattr__(name: str):
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name == "Schema":
        from skdpbayes.schema import Schema

        return Schema
    if name == "open_table":
        from skdpbayes.intake.arrow import open_table

        return open_table
    if name == "read_csv":
        from skdpbayes.intake.files import read_csv

        return read_csv
    if name == "LongFitWarning":
        from skdpbayes.checks import LongFitWarning

        return LongFitWarning
    if name == "set_compilation_cache":
        from skdpbayes.compilation import set_compilation_cache

        return set_compilation_cache
    from skdpbayes.compilation import without_collection

    with without_collection():
        from skdpbayes import estimators

    return getattr(estimators, name)


def __dir__():
    return sorted([*globals(), *__all__])
