"""Latent Dirichlet allocation (Blei, Ng and Jordan 2003), as a `StatisticsModel`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import digamma

from skdpbayes.mechanism.contributions import Quadratic, Scattered
from skdpbayes.mechanism.spec import Block
from skdpbayes.models.base import NORM, Opening, single
from skdpbayes.models.cooccurrence import topics_of_pairs
from skdpbayes.models.lda_information import observed_share
from skdpbayes.models.lda_local import collapsed_step, e_step
from skdpbayes.models.protocols import Contribution, Number, Record
from skdpbayes.posteriors.topics import BETWEEN, TopicsPosterior
from skdpbayes.pytrees import pytree

SHARES = {"words": 0.4, "pairs": 0.15}  # budget shares; the rounds have the rest
_WEIGHT = 0.5  # power of a word's frequency by which its counts are divided
# Ratios of a word's frequency in a topic to its frequency in all topics.
_RATIOS = np.geomspace(0.01, 60, 26).astype(np.float32)
LENGTH = 64  # words of a simulated document
_SAMPLED = 6000  # cells from which the distribution of these ratios is estimated


class TopicsParams(NamedTuple):
    """Parameters and released summaries of the topics; functions of the releases."""

    words: jax.Array  # distribution of the words over all documents, (V,)
    topics: jax.Array  # topics in the E-step, (V, K)
    counts: jax.Array  # denoised counts of each word in each topic, (V, K)
    seen: jax.Array  # released counts, noisy, in units of `scales`
    expected: jax.Array  # counts predicted from `words`, in the same units
    scales: jax.Array  # scales of the words' counts, (V,)
    noise: jax.Array  # standard deviations of the noise in `seen`, (V, K)
    ratios: jax.Array  # probabilities of `_RATIOS`


@pytree
@dataclass(frozen=True)
class LatentDirichletAllocation:
    """Documents as mixtures of topics.

    Each word has a topic drawn from the document's proportions, and is drawn from that topic.

    A record is ``{"columns": word indices, "values": counts}`` as `RaggedRows` gathers it.

    Attributes
    ----------
    n_words, n_components, n_paired : int
        `n_paired` is the number of most frequent words whose pairs are counted for the start.
    doc_topic_prior, topic_word_prior : float
        Concentrations of the Dirichlet priors.
    document_norm : float
        Clipping norm of a document's statistics, counts by topic over the scales of the words.
    private : float
        1 with noise, 0 without: then words have equal scales, and topics have the expectations of
        variational Bayes.
    """

    n_words: int = field(metadata={"static": True})
    n_components: int = field(metadata={"static": True})
    n_paired: int = field(metadata={"static": True})
    doc_topic_prior: Number
    topic_word_prior: Number
    document_norm: Number
    private: Number

    def init(self) -> TopicsParams:
        """Parameters before any release."""
        shape = self.n_words, self.n_components
        words, topics = (
            jnp.full(shape[0], 1 / shape[0], jnp.float32),
            jnp.full(shape, 1 / shape[0], jnp.float32),
        )
        zeros, ones = jnp.zeros(shape, jnp.float32), jnp.ones(shape[0], jnp.float32)
        ratios = jnp.zeros(len(_RATIOS), jnp.float32)
        return TopicsParams(words, topics, zeros, zeros, zeros, ones, zeros, ratios)

    def zeros(self) -> Mapping[str, Any]:
        """Sums of no documents."""
        return {"topics": jnp.zeros((self.n_words, self.n_components), jnp.float32)}

    # ------------------------------------------------------------ releases that lead to a start

    def openings(self) -> tuple[Opening, ...]:
        """Releases of all words, and of pairs of frequent words that share a document."""
        own = Block(NORM, together="statistic")
        return (
            Opening(lambda params: self._words_of, {"words": own}, self._after_words),
            Opening(self._pairs, {"pairs": own}, self._after_pairs),
        )

    def _words_of(self, record):
        counts, _ = _over_largest(record["values"])
        return {"words": self._scattered(record, (counts / _norm(counts))[:, None])}

    def _after_words(
        self,
        params: TopicsParams,
        sums: Mapping[str, Any],
        scales: Mapping[str, jax.Array],
        key: jax.Array,
    ) -> TopicsParams:
        del key
        seen, noise = sums["words"][:, 0], scales["words"]
        total = jnp.maximum(jnp.sum(seen), noise * self.n_words**0.5).clip(1e-30)
        grid = np.geomspace(0.01, max(self.n_words / 5, 2), 40).astype(np.float32)
        even = jnp.full((1, self.n_words), total / self.n_words)
        words = shrunk(seen[None], noise, even, grid)[0][0]
        left = 1 - sum(SHARES.values())
        # Approximate noise of the average over all rounds.
        rounds_noise = 1.34 * noise * (SHARES["words"] / left) ** 0.5
        rare = jnp.maximum(0.3 * rounds_noise * self.n_components**0.5 / total, 0.02 / self.n_words)
        words = words + 1e-9 * total / self.n_words
        words = words / jnp.sum(words)
        # Counts are divided by these scales, which equalise frequent words and damp rare ones.
        scale = (words + rare**2 / words) ** (_WEIGHT * self.private)
        return params._replace(words=words, scales=scale / jnp.exp(jnp.mean(jnp.log(scale))))

    def _paired(self, params):
        """Frequent words, as indices and as places among all words (`n_paired` for the others)."""
        chosen = jax.lax.top_k(params.words, self.n_paired)[1]
        places = jnp.full(self.n_words, self.n_paired).at[chosen].set(jnp.arange(self.n_paired))
        return chosen, places

    def _pairs(self, params):
        _, places = self._paired(params)

        def statistics(record):
            columns, (counts, largest) = record["columns"], _over_largest(record["values"])
            scale = params.scales.at[columns].get(mode="fill", fill_value=1.0)
            place = places.at[columns].get(mode="fill", fill_value=self.n_paired)
            nothing = jnp.zeros(self.n_paired, counts.dtype)
            scaled = nothing.at[place].add(counts / scale, mode="drop")
            with_itself = nothing.at[place].add(counts / largest / scale**2, mode="drop")
            # Its square must not underflow: the compiler may divide by it.
            length = _norm(scaled).clip(1e-12)
            scaled, with_itself = scaled / length, with_itself / length / length
            weight = 1 / _norm(jnp.append(with_itself, jnp.sum(scaled**2))).clip(1)
            return {"pairs": (Quadratic(weight[None, None], scaled), weight * with_itself)}

        return statistics

    def _after_pairs(
        self,
        params: TopicsParams,
        sums: Mapping[str, Any],
        scales: Mapping[str, jax.Array],
        key: jax.Array,
    ) -> TopicsParams:
        pairs, with_itself = sums["pairs"]
        pairs = pairs[0, :, 0]
        pairs = (pairs + pairs.T) / 2 - jnp.diag(with_itself)
        chosen, _ = self._paired(params)
        found, clear = topics_of_pairs(key, pairs, self.n_components, scales["pairs"] / 2**0.5)
        found = found * params.scales[chosen][:, None]
        found = found / jnp.sum(found, axis=0) * jnp.sum(params.words[chosen])
        words = params.words[:, None]
        topics = jnp.broadcast_to(words, (self.n_words, self.n_components)).at[chosen].set(found)
        sharp = 0.95 * clear  # topics that may be noise are flattened
        topics = sharp * topics / jnp.sum(topics, axis=0) + (1 - sharp) * words
        return params._replace(topics=topics.astype(jnp.float32))

    # ------------------------------------------------------------ rounds

    def statistics(self, params: TopicsParams) -> Callable[[Record], Mapping[str, Contribution]]:
        """Expected counts by word and topic of one document, over the scales of the words."""

        def of(record):
            topics, scale = _at_words(params, record)
            proportions, ratio = e_step(topics, record["values"], self.doc_topic_prior)
            counts = topics * proportions * (ratio / scale)[:, None]
            return {"topics": self._scattered(record, counts)}

        return of

    def collapsed_statistics(
        self, params: TopicsParams
    ) -> Callable[[Record], Mapping[str, Contribution]]:
        """As `statistics`, with the document's proportions integrated out (`collapsed_step`)."""

        def of(record):
            topics, scale = _at_words(params, record)
            labels = collapsed_step(topics, record["values"], self.doc_topic_prior)
            counts = labels * (record["values"] / scale)[:, None]
            return {"topics": self._scattered(record, counts)}

        return of

    def _scattered(self, record, values):
        return Scattered(record["columns"], values, self.n_words)

    def blocks(self) -> Mapping[str, Block]:
        """Clipping norm of documents."""
        return {"topics": Block(self.document_norm, together="statistic")}

    def carry(
        self, sums: Mapping[str, Any], old: TopicsParams, new: TopicsParams
    ) -> Mapping[str, Any]:
        """Sums unchanged: they are counts."""
        del old, new
        return sums

    def m_step(
        self, params: TopicsParams, sums: Mapping[str, Any], scales: Mapping[str, jax.Array]
    ) -> TopicsParams:
        """Topics given noisy counts: denoised with noise, as they are without.

        The noise may differ between counts.
        """
        seen, noise = sums["topics"], jnp.broadcast_to(scales["topics"], params.counts.shape)
        total = jnp.maximum(jnp.sum(seen), jnp.sqrt(jnp.sum(noise**2)))
        by_topic = jnp.maximum(jnp.sum(seen, axis=0), 0.1 * total / self.n_components)
        words = params.words / params.scales
        expected = by_topic * (words / jnp.sum(words))[:, None]
        likely, ratios = shrunk(seen.T, noise.T, expected.T, jnp.asarray(_RATIOS))
        counts = likely.T * params.scales[:, None]
        concentration = counts + self.topic_word_prior
        mean = counts / jnp.sum(counts, axis=0).clip(1e-30)
        expectation = jnp.exp(digamma(concentration) - digamma(jnp.sum(concentration, axis=0)))
        new = params._replace(
            topics=jnp.where(self.private > 0, mean + 1e-12, expectation),
            counts=counts,
            seen=seen,
            expected=expected,
            noise=noise,
            ratios=ratios,
        )
        return single(new)

    def drawn_topics(self, params: TopicsParams, key: jax.Array) -> TopicsParams:
        """Parameters whose topics are a draw of `posterior`, for the E-step; `topics` at first."""
        of_counts, of_topics = jax.random.split(key)
        counts = drawn_counts(of_counts, params) * params.scales[:, None]
        weights = jax.random.loggamma(of_topics, counts + self.topic_word_prior)
        topics = jax.nn.softmax(weights, axis=0) + 1e-12
        begun = jnp.any(params.counts > 0)
        return single(params._replace(topics=jnp.where(begun, topics, params.topics)))

    def observed(self, params: TopicsParams, key: jax.Array) -> jax.Array:
        """Share of the information about each count that documents leave, (V, K)."""
        share = observed_share(key, params.topics, self.doc_topic_prior, LENGTH)
        return jnp.where(self.private > 0, share, 1.0).astype(jnp.float32)

    def expected_counts(
        self, params: TopicsParams, released: jax.Array, noise: jax.Array
    ) -> jax.Array:
        """Counts of these topics, as many words in each topic as in a release; over `scales`."""
        by_topic = jnp.sum(released * params.scales[:, None], axis=0)
        spread = noise * jnp.sqrt(jnp.sum(params.scales**2) * self.n_components)
        total = jnp.maximum(jnp.sum(by_topic), spread)
        by_topic = jnp.maximum(by_topic, 0.1 * total / self.n_components)
        return params.topics * by_topic / params.scales[:, None]

    def posterior(self, params: TopicsParams) -> TopicsPosterior:
        """Posterior of the topics, with the privacy noise."""
        counts, seen, expected, noise, scales, ratios = (
            np.asarray(x, np.float64)
            for x in (
                params.counts, params.seen, params.expected,
                params.noise, params.scales, params.ratios,
            )
        )  # fmt: skip
        return TopicsPosterior(
            prior=float(self.topic_word_prior),
            counts=counts.T,
            seen=seen.T,
            expected=expected.T,
            scales=scales,
            noise=noise.T,
            grid=_RATIOS,
            probabilities=ratios,
        )


def shrunk(seen, noise, expected, ratios):
    """Posterior means of non-negative counts observed with normal noise, and their prior.

    A count is its expectation times a ratio. The prior of the ratio is a mixture of normal
    distributions, one about each point of a grid and as wide as its gaps. The weights are maximum
    likelihood estimates from all counts, by expectation-maximisation (empirical Bayes).

    Parameters
    ----------
    seen, expected : arrays of shape (n_lists, n)
    noise : float or array of shape (n_lists, n)
        Standard deviations; if they are zero, `seen` is returned.
    ratios : array
        The grid, in geometric progression.

    Returns
    -------
    means : array of shape (n_lists, n)
    prior : array
        Weight of each point of the grid.
    """
    variance = jnp.broadcast_to(jnp.where(noise > 0, noise, 1) ** 2, seen.shape)
    width = BETWEEN * (ratios[1] / ratios[0] - 1)

    def likelihood(seen, expected, variance):
        centre = expected[..., None] * ratios
        spread, variance = (width * centre) ** 2, variance[..., None]
        log = -0.5 * (
            (seen[..., None] - centre) ** 2 / (variance + spread) + jnp.log(variance + spread)
        )
        means = centre + spread / (variance + spread) * (seen[..., None] - centre)
        return jnp.exp(log - jnp.max(log, axis=-1, keepdims=True)), means

    every = max(1, seen.size // _SAMPLED)
    sample = likelihood(*(x.ravel()[::every] for x in (seen, expected, variance)))[0]

    def better(i, prior):
        new = jnp.mean(sample * prior / (sample @ prior)[:, None], axis=0) + 1e-6
        return new / jnp.sum(new)

    prior = jax.lax.fori_loop(0, 40, better, jnp.full(len(ratios), 1 / len(ratios), jnp.float32))

    def of_list(one):
        weights, means = likelihood(*one)
        weights = weights * prior
        return (jnp.sum(weights * means, axis=-1) / jnp.sum(weights, axis=-1)).clip(0)

    means = jax.lax.map(of_list, (seen, expected, variance))
    return jnp.where(noise > 0, means, seen.clip(0)), prior


def drawn_counts(key: jax.Array, params: TopicsParams) -> jax.Array:
    """Draw of the counts given noisy ones, (V, K), in units of `scales` (see `shrunk`)."""
    of_ratio, of_count = jax.random.split(key)
    width, noise = BETWEEN * (_RATIOS[1] / _RATIOS[0] - 1), params.noise
    variance = jnp.where(noise > 0, noise, 1) ** 2

    def closer(best, one):
        """A categorical draw by the largest of Gumbel variables, one point of the grid a time."""
        ratio, prior, key = one
        centre = ratio * params.expected
        total = variance + (width * centre) ** 2
        log = jnp.log(prior) - 0.5 * ((params.seen - centre) ** 2 / total + jnp.log(total))
        log = log + jax.random.gumbel(key, log.shape, log.dtype)
        return (jnp.maximum(best[0], log), jnp.where(log > best[0], centre, best[1])), None

    start = jnp.full_like(params.seen, -jnp.inf), jnp.zeros_like(params.seen)
    grid = jnp.asarray(_RATIOS), params.ratios, jax.random.split(of_ratio, len(_RATIOS))
    centre = jax.lax.scan(closer, start, grid)[0][1]
    spread = (width * centre) ** 2
    share = spread / (variance + spread)
    normal = jax.random.normal(of_count, centre.shape, centre.dtype)
    count = centre + share * (params.seen - centre) + jnp.sqrt(share * variance) * normal
    return jnp.where(noise > 0, count, params.seen).clip(0)


def _at_words(params, record):
    """Topics, (L, K), and scales, (L,), of a document's words."""
    columns = record["columns"]
    topics = params.topics.at[columns].get(mode="fill", fill_value=0.0)
    return topics, params.scales.at[columns].get(mode="fill", fill_value=1.0)


def _over_largest(counts):
    """Counts over their largest, so that squares neither overflow nor vanish; the largest."""
    largest = jnp.max(counts).clip(1e-12)
    return counts / largest, largest


def _norm(values):
    return jnp.sqrt(jnp.sum(values**2)).clip(1e-30)
