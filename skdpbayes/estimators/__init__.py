"""scikit-learn estimators."""

from skdpbayes.estimators._families import DPBetaBernoulli, DPDirichletCategorical, DPGammaExponential
from skdpbayes.estimators._logistic import DPBayesianLogisticRegression

__all__ = ["DPBayesianLogisticRegression", "DPBetaBernoulli", "DPDirichletCategorical", "DPGammaExponential"]
