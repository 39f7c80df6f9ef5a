"""scikit-learn estimators."""

from skdpbayes.estimators._autoencoder import DPVariationalAutoencoder
from skdpbayes.estimators._belief_net import DPSigmoidBeliefNet
from skdpbayes.estimators._bernoulli import DPBetaBernoulli
from skdpbayes.estimators._categorical import DPDirichletCategorical
from skdpbayes.estimators._exponential import DPGammaExponential
from skdpbayes.estimators._hierarchical import DPHierarchicalLogisticRegression
from skdpbayes.estimators._linear import DPBayesianLinearRegression
from skdpbayes.estimators._logistic import DPBayesianLogisticRegression
from skdpbayes.estimators._mixture import DPGaussianMixture
from skdpbayes.estimators._mlp_classifier import DPBayesianMLPClassifier
from skdpbayes.estimators._mlp_regressor import DPBayesianMLPRegressor
from skdpbayes.estimators._numpyro import DPNumPyroModel
from skdpbayes.estimators._topics import DPLatentDirichletAllocation

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
]
