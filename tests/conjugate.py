"""A conjugate normal model whose posterior is known, and posteriors that are wrong in known ways."""

import numpy as np

NOISE = 0.7  # standard deviation of one observation; the prior's is 1
STD = NOISE / np.sqrt(1 + NOISE**2)  # of the posterior


def conjugate(
    n_replicates=400, n_draws=199, n_parameters=3, width=1.0, shift=0.0, seed=0, unit=1.0
):
    """Draws and truths; the posterior is `width` times too wide and `shift` standard deviations off, in `unit`."""
    rng = np.random.default_rng(seed)
    truth = rng.standard_normal((n_replicates, n_parameters))
    mean = (truth + NOISE * rng.standard_normal(truth.shape)) / (1 + NOISE**2)
    noise = rng.standard_normal((n_replicates, n_draws, n_parameters))
    return unit * (mean[:, None] + STD * (shift + width * noise)), unit * truth


WRONG = {"narrow": {"width": 0.5}, "wide": {"width": 1.5}, "shifted": {"shift": 1.0}}
