"""MNIST, from the folder that ``SKDPBAYES_DATA_HOME`` names."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

HELD_OUT = 10_000


def load(holdout: bool) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Rows of 784 bytes and digits, of the training and of the test images.

    Parameters
    ----------
    holdout : bool
        The test images are 10 000 of the training images, which then are not among those.
    """
    home = os.environ.get("SKDPBAYES_DATA_HOME")
    path = Path(home or ".") / "mnist.npz"
    if not home or not path.exists():
        raise SystemExit(f"{path} is not there; SKDPBAYES_DATA_HOME must name a folder that holds mnist.npz.")
    with np.load(path) as arrays:
        X, X_test = (arrays[name].reshape(-1, 784) for name in ("x_train", "x_test"))
        y, y_test = (arrays[name].astype(int) for name in ("y_train", "y_test"))
    if holdout:
        order = np.random.default_rng(0).permutation(len(X))
        kept, held = order[HELD_OUT:], order[:HELD_OUT]
        X, y, X_test, y_test = X[kept], y[kept], X[held], y[held]
    return X, y, X_test, y_test
