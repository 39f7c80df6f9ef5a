"""Pictures of private models: components of a mixture, topics, weights of a belief network.

``make bench-pictures`` draws ``mixture.png``, ``topics.png`` and ``weights.png``, or those that are
named. The mixture is simulated and shown with its rows; topics of the 20 Newsgroups and weights of
binarised MNIST need the folder that ``SKDPBAYES_DATA_HOME`` names, and show what was released only.
Topics are printed too, as Table 2 of the VIPS paper.
"""

from __future__ import annotations

import argparse
import os
import warnings
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np

from benchmarks import belief_net, topics
from benchmarks.mixture import five_clusters, private

EPSILONS = {"mixture": 1.0, "topics": 4.0, "weights": 1.0}
GREY, BLUE, ORANGE = "#9a9a9a", "#1f6fb2", "#d1603d"
N_TOPICS, N_WORDS = 8, 10


def mixture(epsilon: float) -> Any:
    """Overlapping components, radius two deviations: the truth, and draws of two solvers."""
    problem = five_clusters()
    X = problem.draw(np.random.default_rng(0), problem.n_train)
    figure, axes = plt.subplots(1, 2, figsize=(11, 5.4), sharex=True, sharey=True)
    for axis, solver in zip(axes, ("vips", "na-dpvi"), strict=True):
        draws = private(problem, X, epsilon, 0, solver).sample_posterior(20, random_state=0)
        axis.plot(*X.T, ".", color=GREY, markersize=2, alpha=0.5)
        for means, covariances in zip(draws["means"], draws["covariances"], strict=True):
            _ellipses(axis, means, covariances, color=BLUE, linewidth=0.7, alpha=0.5)
        _ellipses(axis, problem.means, problem.covariances, color=ORANGE, linewidth=2)
        axis.set(title=f"solver={solver!r}", aspect="equal", xlim=(-5, 5), ylim=(-5, 5))
    figure.suptitle(
        f"Five components at epsilon {epsilon:g}, from {len(X)} rows: 20 posterior draws (blue), "
        "the truth (orange)"
    )
    return figure


def _ellipses(axis, means, covariances, **style):
    turn = np.linspace(0, 2 * np.pi, 100)
    circle = 2 * np.stack([np.cos(turn), np.sin(turn)])
    for mean, covariance in zip(means, covariances, strict=True):
        axis.plot(*(mean[:, None] + np.linalg.cholesky(covariance) @ circle), **style)


def topics_of_news(epsilon: float) -> Any:
    """The most distinctive words of topics, with central 90% intervals."""
    corpus = topics.newsgroups(holdout=False)
    model = topics.private(corpus, epsilon, 0)
    draws = model.sample_posterior(200, random_state=0)["topics"]
    shares = model.components_ / model.components_.sum(axis=1, keepdims=True)
    lift = shares * np.log(shares / shares.mean(axis=0))
    largest = np.argsort(-model.components_.sum(axis=1))[:N_TOPICS]
    figure, axes = plt.subplots(2, N_TOPICS // 2, figsize=(13, 7), constrained_layout=True)
    print(
        f"20 Newsgroups at epsilon {epsilon:g}: the {N_TOPICS} largest of {corpus.n_components} "
        "topics"
    )
    for axis, topic in zip(axes.ravel(), largest, strict=True):
        top = np.argsort(-lift[topic])[:N_WORDS][::-1]
        low, high = 100 * np.quantile(draws[:, topic][:, top], [0.05, 0.95], axis=0)
        axis.hlines(range(N_WORDS), low, high, color=BLUE, linewidth=3, alpha=0.5)
        axis.plot(100 * shares[topic, top], range(N_WORDS), "o", color=BLUE, markersize=4)
        axis.set_yticks(range(N_WORDS), [corpus.words[word] for word in top])
        axis.set_xlim(left=0)
        print("  " + " ".join(corpus.words[word] for word in top[::-1]))
    figure.supxlabel(f"percent of the topic's words, with 90% intervals (epsilon {epsilon:g})")
    return figure


def weights(epsilon: float) -> Any:
    """Weights of each hidden unit as an image, and rows that the network makes."""
    model = belief_net.private(belief_net.mnist(holdout=False), 50, epsilon, 0)
    side = belief_net.SIDE
    images = model.components_.reshape(-1, side, side)
    made = model.sample(20, random_state=0).reshape(-1, side, side)
    figure, axes = plt.subplots(7, 10, figsize=(9, 6.8))
    for axis, image in zip(axes.ravel(), [*images, *made], strict=True):
        most, signed = np.abs(image).max(), image.min() < 0  # images that are made are not
        axis.imshow(
            image, cmap="RdBu" if signed else "Greys", vmin=-most if signed else 0, vmax=most
        )
        axis.axis("off")
    figure.suptitle(
        f"Binarised MNIST at epsilon {epsilon:g}: weights of 50 hidden units, and 20 images that "
        "they make"
    )
    return figure


PICTURES = {"mixture": mixture, "topics": topics_of_news, "weights": weights}


def main() -> None:
    """Draw what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    # argparse compares the default, as a whole, with the choices too.
    parser.add_argument(
        "pictures",
        nargs="*",
        choices=[*PICTURES, []],
        default=[],
        metavar="PICTURE",
        help="default: all",
    )
    parser.add_argument("--epsilon", type=float, help="default: 1, and 4 for topics")
    parser.add_argument("--folder", type=Path, default=Path(), help="where to (default: here)")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    for name in options.pictures or PICTURES:
        if name != "mixture" and not os.environ.get("SKDPBAYES_DATA_HOME"):
            print(f"{name}: SKIPPED, as SKDPBAYES_DATA_HOME names no folder with the data")
            continue
        figure = PICTURES[name](options.epsilon or EPSILONS[name])
        path = options.folder / f"{name}.png"
        figure.savefig(path, dpi=110)
        print(f"drew {path}")


if __name__ == "__main__":
    main()
