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
        raise SystemExit(
            f"{path} is not there; SKDPBAYES_DATA_HOME must name a folder that holds mnist.npz."
        )
    with np.load(path) as arrays:
        X, X_test = (arrays[name].reshape(-1, 784) for name in ("x_train", "x_test"))
        y, y_test = (arrays[name].astype(int) for name in ("y_train", "y_test"))
    if holdout:
        order = np.random.default_rng(0).permutation(len(X))
        kept, held = order[HELD_OUT:], order[:HELD_OUT]
        X, y, X_test, y_test = X[kept], y[kept], X[held], y[held]
    return X, y, X_test, y_test


def gradient_histograms(X: np.ndarray) -> np.ndarray:
    """Histograms of oriented gradients (Dalal and Triggs 2005): nine directions, 2x2 cells of 4x4.

    A function of one image, which knows nothing of the others: it costs no privacy. Each of the 36
    blocks has a norm below one.
    """
    found = []
    for part in np.array_split(X.reshape(-1, 28, 28).astype(np.float32), max(1, len(X) // 2000)):
        down, right = np.gradient(part, axis=(1, 2))
        turn = (np.arctan2(down, right) % np.pi) * 9 / np.pi
        cells = np.hypot(down, right)[..., None] * (turn.astype(int)[..., None] % 9 == np.arange(9))
        cells = cells.reshape(-1, 7, 4, 7, 4, 9).sum(axis=(2, 4))
        blocks = np.concatenate(
            [cells[:, i : i + 6, j : j + 6] for i in (0, 1) for j in (0, 1)], axis=-1
        )
        found.append(blocks / np.sqrt((blocks**2).sum(axis=-1, keepdims=True) + 1))
    return np.concatenate(found).reshape(len(X), -1)
