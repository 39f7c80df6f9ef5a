"""Perplexity of private topic models on held-out documents, beside scikit-learn's non-private ones.

``make bench-topics``, or with a choice: ``make bench-topics TOPICS_ARGS="--corpora simulated
--seeds 2"``. The measure is document completion: half of the words of each test document, at
random, gives its topic proportions, and the other half is scored, by the mean topics. The 20
Newsgroups lie in ``SKDPBAYES_DATA_HOME`` (counts of a fixed public vocabulary); without them there
are the simulated documents only. ``--holdout`` scores a tenth of the training documents in place of
the official test documents, as choosing defaults must.
"""

from __future__ import annotations

import argparse
import math
import os
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy import sparse
from scipy.optimize import linear_sum_assignment

from benchmarks import _log
from skdpbayes.posteriors.topics import TopicsPosterior

DELTA = 1e-5
N_OFFICIAL = 11_314  # training documents of the 20 Newsgroups, which come first
EXTRA = 0.1  # added to each count of the unigram
_ALSO = ("coverage", "exact coverage", "learnt")
LEAST = 1e-3  # true probability of a word, above which coverage counts
SPARSE = 0.05  # concentration of simulated topics


@dataclass(frozen=True)
class Corpus:
    """Counts of words in documents, and what is asked of them."""

    train: Any
    test: Any
    words: list[str]
    n_components: int
    epsilons: tuple[float, ...]
    seeds: int
    topics: np.ndarray | None = None  # the true ones, where they are known


def simulated(*, holdout: bool, n_train: int = 20_000, n_test: int = 2_000) -> Corpus:
    """Ten sparse topics of 500 words; documents of 5 to 400 words."""
    del holdout  # the test documents are drawn, and as good as any
    rng = np.random.default_rng(0)
    topics = rng.dirichlet(np.full(500, SPARSE), 10)
    n = n_train + n_test
    proportions = rng.dirichlet(np.full(10, 0.1), n)
    lengths = np.clip(rng.lognormal(math.log(80) - 0.18, 0.6, n).astype(int), 5, 400)
    counts = np.empty((n, 500), np.int16)
    for start in range(0, n, 2000):
        block = slice(start, start + 2000)
        counts[block] = rng.multinomial(lengths[block], proportions[block] @ topics)
    train, test = (
        sparse.csr_array(part, dtype=float) for part in (counts[:n_train], counts[n_train:])
    )
    return Corpus(train, test, [f"w{j}" for j in range(500)], 10, (0.5, 1.0, 4.0), 5, topics)


def newsgroups(*, holdout: bool) -> Corpus:
    """20 Newsgroups by date, in archive order; vocabulary of Hoffman, Blei and Bach (2010)."""
    home = Path(os.environ.get("SKDPBAYES_DATA_HOME") or ".")
    counts = sparse.csr_array(sparse.load_npz(home / "20news_hoffman_counts.npz"), dtype=float)
    words = (home / "20news_hoffman_vocab.txt").read_text("utf-8").split()
    train, test = counts[:N_OFFICIAL], counts[N_OFFICIAL:]
    if holdout:
        out = np.random.default_rng(0).permutation(N_OFFICIAL) < N_OFFICIAL // 10
        train, test = train[~out], train[out]
    return Corpus(train, test, words, 20, (0.5, 1.0, 2.0, 4.0, 8.0, math.inf), 3)


CORPORA: dict[str, Callable[..., Corpus]] = {"simulated": simulated, "newsgroups": newsgroups}


def private(corpus: Corpus, epsilon: float, seed: int, **parameters: Any) -> Any:
    """The estimator under test, with default parameters."""
    from skdpbayes import DPLatentDirichletAllocation

    options = {"n_components": corpus.n_components, "delta": DELTA} | parameters
    return DPLatentDirichletAllocation(epsilon=epsilon, random_state=seed, **options).fit(
        corpus.train
    )


def not_private(corpus: Corpus, seed: int, **parameters: Any) -> Any:
    """Scikit-learn's."""
    from sklearn.decomposition import LatentDirichletAllocation

    return LatentDirichletAllocation(corpus.n_components, random_state=seed, **parameters).fit(
        corpus.train
    )


def completion(topics: np.ndarray, proportions: Callable[[Any], np.ndarray], test: Any) -> float:
    """Perplexity of half of each document's words given the other half, the same for all models."""
    rng = np.random.default_rng(0)
    test = sparse.csr_matrix(test, dtype=float)
    test.sum_duplicates()
    given, left = test.copy(), test.copy()
    given.data = rng.binomial(test.data.astype(np.int64), 0.5).astype(float)
    left.data = test.data - given.data
    left = left.tocoo()
    of = proportions(given)
    log = 0.0
    for block in np.array_split(np.arange(left.nnz), max(1, left.nnz // 2**16)):
        mean = np.einsum("ik,ki->i", of[left.row[block]], topics[:, left.col[block]])
        log += float(left.data[block] @ np.log(mean))
    return math.exp(-log / left.data.sum())


def of_model(model: Any, test: Any) -> float:
    """`completion` of a fitted model."""
    topics = model.components_ / model.components_.sum(axis=1, keepdims=True)
    return completion(topics, model.transform, test)


def coverage(model: Any, topics: np.ndarray, level: float = 0.9) -> float:
    """Share of the words of true probability above `LEAST` that intervals cover.

    Fitted topics are matched to the true ones by the sum of their distances.
    """
    draws = model.sample_posterior(300, 0)["topics"][:, _matched(model, topics)]
    low, high = np.quantile(draws, [(1 - level) / 2, (1 + level) / 2], axis=0)
    return float(((low <= topics) & (topics <= high))[topics > LEAST].mean())


def _matched(model: Any, topics: np.ndarray) -> np.ndarray:
    """Number of the fitted topic that is most like each of the true ones."""
    distance = np.abs(topics[:, None] - model.topics_[None]).sum(axis=2)
    order: np.ndarray = linear_sum_assignment(distance)[1]
    return order


def exact_coverage(
    posterior: TopicsPosterior, order: np.ndarray, topics: np.ndarray, level: float = 0.9
) -> float:
    """`coverage` of exact posteriors under the simulation's own prior, given the fit's noise.

    True probabilities are seen with the noise that the fit reports, three times. Intervals of a
    posterior hold on average over its prior, and the words above `LEAST` are a selection from it.
    """
    seen, scales = posterior.seen[order], posterior.scales
    of_topics = (seen * scales).sum(axis=1, keepdims=True)
    noise = np.broadcast_to(posterior.noise, seen.shape)[order] * scales / of_topics
    rng, tails, covered = np.random.default_rng(0), ((1 - level) / 2, (1 + level) / 2), []
    for _ in range(3):
        for truth, sd in zip(topics, noise, strict=True):
            chosen = truth > LEAST
            truth, sd = truth[chosen, None], sd[chosen, None]
            released = truth + sd * rng.standard_normal(truth.shape)
            grid, prior = _prior(sd.min() / 4, (truth + 8 * sd).max(), topics.shape[1])
            below = np.cumsum(prior * np.exp(-(((released - grid) / sd) ** 2) / 2), axis=1)
            low, high = ((below < tail * below[:, -1:]).sum(axis=1) for tail in tails)
            covered.append((grid[low] <= truth[:, 0]) & (truth[:, 0] <= grid[high]))
    return float(np.concatenate(covered).mean())


def _prior(step: float, largest: float, n_words: int) -> tuple[np.ndarray, np.ndarray]:
    """Grid of a word's probability, as fine as the noise asks for, and its prior masses."""
    small = np.geomspace(1e-12, 20 * step, 1000, endpoint=False)
    grid = np.append(small, np.arange(20 * step, min(largest, 1), step))
    density = grid ** (SPARSE - 1) * (1 - grid) ** (SPARSE * (n_words - 1) - 1)
    masses = density * np.gradient(grid)
    masses[0] += grid[0] ** SPARSE / SPARSE  # below the grid
    return grid, masses


def references(corpus: Corpus) -> dict[str, float]:
    """Baselines without a fit: uniform, training frequencies, and the truth if it is known."""
    test = corpus.test
    frequency = np.asarray(corpus.train.sum(axis=0)).ravel() + EXTRA
    found = {"uniform": float(test.shape[1])}
    found["unigram"] = completion(
        frequency[None] / frequency.sum(), lambda X: np.ones((X.shape[0], 1)), test
    )
    if corpus.topics is not None:
        from sklearn.decomposition import LatentDirichletAllocation

        oracle = LatentDirichletAllocation(corpus.n_components, doc_topic_prior=0.1)
        oracle.components_ = oracle.exp_dirichlet_component_ = corpus.topics
        oracle.doc_topic_prior_, oracle.n_features_in_ = 0.1, test.shape[1]
        found["true topics"] = completion(corpus.topics, oracle.transform, test)
    return found


def run(
    name: str,
    corpus: Corpus,
    epsilons: tuple[float, ...] | None = None,
    seeds: int | None = None,
    fit: Callable[..., Any] = private,
    scikit_learn: bool = True,
    solvers: tuple[str, ...] = ("vips",),
) -> list[dict[str, Any]]:
    """Fit and score at each level with each seed; one record a line of the table."""
    seeds, levels = seeds or corpus.seeds, epsilons or corpus.epsilons
    fixed = references(corpus)
    records = [
        {"corpus": name, "line": line, "perplexity": [score]} for line, score in fixed.items()
    ]
    fits: dict[str, Callable[[int], Any]] = {}
    if scikit_learn:
        fits["scikit-learn, online"] = lambda seed: not_private(
            corpus, seed, learning_method="online"
        )
        fits["scikit-learn, batch of 20"] = lambda seed: not_private(
            corpus, seed, learning_method="batch", max_iter=20
        )
    for level in levels:
        for solver in solvers:
            own = "" if solver == "vips" else f", {solver}"
            fits[f"epsilon {level:g}{own}"] = lambda seed, level=level, solver=solver: fit(
                corpus, level, seed, solver=solver
            )
        if name == "newsgroups" and math.isfinite(level):
            fits[f"epsilon {level:g}, one topic"] = lambda seed, level=level: fit(
                corpus, level, seed, n_components=1
            )
    for warm in {corpus.n_components, 1} if name == "newsgroups" else {corpus.n_components}:
        fit(corpus, 1.0, 0, n_components=warm, n_steps=3)  # compiles, so that no time below does
    for line, make in fits.items():
        slow = line.startswith("scikit-learn, batch") or line.endswith("one topic")
        perplexity, seconds, covered, exact, learnt = [], [], [], [], []
        try:
            for seed in range(1 if slow else seeds):
                start = time.perf_counter()
                model = make(seed)
                seconds.append(time.perf_counter() - start)
                perplexity.append(of_model(model, corpus.test))
                if corpus.topics is not None and not line.startswith("scikit-learn"):
                    covered.append(coverage(model, corpus.topics))
                    posterior = getattr(model, "posterior_", None)
                    if isinstance(posterior, TopicsPosterior) and np.all(posterior.noise > 0):
                        order = _matched(model, corpus.topics)
                        exact.append(exact_coverage(posterior, order, corpus.topics))
                learnt.append(getattr(model, "n_topics_learnt_", math.nan))
        except ValueError as error:  # sgld says which budget it needs
            print(f"{name}, {line}: refused. {error}", flush=True)
            continue
        record = {"corpus": name, "line": line, "perplexity": perplexity, "seconds": seconds}
        if np.isfinite(learnt).all():
            record["learnt"] = learnt
        if covered:
            record["coverage"] = covered
        if exact:
            record["exact coverage"] = exact
        records.append(record)
        print(
            f"{name}, {line}: {np.mean(perplexity):.1f}, {np.median(seconds):.1f} s"
            + (f", coverage {np.mean(covered):.2f}" if covered else "")
            + f", topics learnt {np.mean(learnt):.1f}",
            flush=True,
        )
    if not scikit_learn:
        return records
    online = next(record for record in records if record["line"] == "scikit-learn, online")
    for record in records:
        gap = fixed["unigram"] - np.mean(online["perplexity"])
        record["closed"] = float((fixed["unigram"] - np.mean(record["perplexity"])) / gap)
        if "seconds" in record:
            record["ratio"] = float(np.median(record["seconds"]) / np.median(online["seconds"]))
    return records


def row_of(record: dict[str, Any]) -> list[str]:
    """Table row: perplexity and its standard error, share of the gap closed, seconds, ratio."""
    scores = np.array(record["perplexity"])
    error = f" ±{scores.std(ddof=1) / len(scores) ** 0.5:.1f}" if len(scores) > 1 else ""
    seconds = f"{np.median(record['seconds']):.1f}" if "seconds" in record else ""
    closed, ratio = (
        f"{record[name]:.2f}" if name in record else "" for name in ("closed", "ratio")
    )
    also = [f"{np.mean(record[name]):.2f}" if name in record else "" for name in _ALSO]
    return [
        f"{record['corpus']}: {record['line']}",
        f"{scores.mean():.1f}{error}", f"{scores.max():.1f}", *also,
        closed, seconds, ratio,
    ]  # fmt: skip


def top_words(model: Any, words: list[str], n: int = 8) -> list[str]:
    """A line for each topic: its most frequent words, with a 90% interval for the first."""
    draws = model.sample_posterior(300, 0)["topics"]
    lines = []
    for k, topic in enumerate(model.topics_):
        best = np.argsort(-topic)[:n]
        low, high = np.quantile(draws[:, k, best[0]], [0.05, 0.95])
        lines.append(
            f"{k:2d}  {topic[best[0]]:.4f} [{low:.4f}, {high:.4f}]  "
            + " ".join(words[j] for j in best)
        )
    return lines


def main() -> None:
    """Run what the command line asks for, print the tables, log."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument(
        "--corpora", nargs="+", choices=list(CORPORA), default=list(CORPORA), metavar="CORPUS"
    )
    parser.add_argument(
        "--epsilons", nargs="+", type=float, help="levels (default: those of each corpus)"
    )
    parser.add_argument(
        "--solvers", nargs="+", default=["vips"], help="solvers (default: vips alone)"
    )
    parser.add_argument("--seeds", type=int, help="fits per level (default: those of each corpus)")
    parser.add_argument(
        "--holdout", action="store_true", help="score a tenth of the training documents"
    )
    parser.add_argument(
        "--private", action="store_true", help="leave out scikit-learn's fits, which take longest"
    )
    parser.add_argument(
        "--topics",
        type=float,
        metavar="EPSILON",
        help="print topics at this level, and nothing else",
    )
    options = parser.parse_args()
    if options.seeds is not None and options.seeds < 1:
        parser.error(f"--seeds must be at least 1; got {options.seeds}")
    warnings.simplefilter("ignore")

    records: list[dict[str, Any]] = []
    for name in options.corpora:
        try:
            corpus = CORPORA[name](holdout=options.holdout)
        except FileNotFoundError as error:
            print(f"{name}: left out, {error.filename} is not there. Set SKDPBAYES_DATA_HOME.")
            continue
        if options.topics is not None:
            print(
                f"\n{name}, epsilon {options.topics:g}: the first word's probability with a 90% "
                "interval, and words.\n"
            )
            print("\n".join(top_words(private(corpus, options.topics, 0), corpus.words)))
            continue
        levels = tuple(options.epsilons) if options.epsilons else None
        records += run(
            name,
            corpus,
            levels,
            options.seeds,
            scikit_learn=not options.private,
            solvers=tuple(options.solvers),
        )
    if not records:
        return
    print(
        f"\nCompletion perplexity, delta {DELTA:g}: mean and standard error over fits, the worst; "
        f"coverage of 90% intervals of\nprobabilities above {LEAST:g}, that of exact posteriors "
        "given the\nsame noise, topics learnt, the share closed of the gap from the unigram to "
        "scikit-learn's online fit,\n"
        "seconds of a fit and over those "
        "of the online fit.\n"
    )
    print(
        _log.table(
            [
                "corpus",
                "perplexity",
                "worst",
                "coverage",
                "exact coverage",
                "topics learnt",
                "closed",
                "s/fit",
                "ratio",
            ],
            [row_of(r) for r in records],
        )
    )
    path = _log.append(
        "topics", {"holdout": options.holdout, "seeds": options.seeds, "records": records}
    )
    print(f"\nAppended to {path.relative_to(_log.ROOT)}")


if __name__ == "__main__":
    main()
