"""scikit-learn estimators."""

from skdpbayes.estimators._logistic import DPBayesianLogisticRegression

__all__ = ["DPBayesianLogisticRegression"]
