"""Posteriors returned by a fit, over the flattened parameters, in NumPy float64."""

from skdpbayes.posteriors.base import (
    DrawsPosterior,
    GaussianPosterior,
    MappedPosterior,
    Posterior,
    SampledPosterior,
)

__all__ = [
    "DrawsPosterior",
    "GaussianPosterior",
    "MappedPosterior",
    "Posterior",
    "SampledPosterior",
]
