"""
Topics of documents, with intervals
===================================

Ten topics of the 20 Newsgroups, private with respect to one document, with an interval for each word's probability.
A second picture shows what the topics are worth at other budgets, beside scikit-learn's without privacy.
"""

# %%
# Documents, and a vocabulary that is public
# ------------------------------------------
# The vocabulary names the columns, so it must not come from the documents to protect: a rare word in it would tell
# that somebody has used it. Here the test documents stand for a public collection of the same kind, and the vocabulary
# is their thousand most common words, less stop words.

import os
import socket
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from scipy import sparse
from sklearn.datasets import fetch_20newsgroups
from sklearn.decomposition import LatentDirichletAllocation
from sklearn.feature_extraction.text import ENGLISH_STOP_WORDS, CountVectorizer

from skdpbayes import DPLatentDirichletAllocation

N_TRAIN = 11_314  # official training documents, which come first
STOP = ENGLISH_STOP_WORDS | set(
    "didnt doesnt dont don doesn didn isn ive id im ll ve youre thats isnt cant wont arent wasnt havent theres "
    "just like know think people good time say said going want really right make way did does".split()
)


def newsgroups():
    """Counts of training and test documents, and words: from a folder of counts, or else from scikit-learn."""
    if home := os.environ.get("SKDPBAYES_DATA_HOME"):
        counts = sparse.csr_array(sparse.load_npz(Path(home) / "20news_hoffman_counts.npz"))
        words = np.array((Path(home) / "20news_hoffman_vocab.txt").read_text("utf-8").split())
        return counts[:N_TRAIN], counts[N_TRAIN:], words
    patience = socket.getdefaulttimeout()
    socket.setdefaulttimeout(20.0)  # the fetcher sets no limit
    try:
        remove = "headers", "footers", "quotes"
        train, test = (fetch_20newsgroups(subset=part, remove=remove, n_retries=1).data for part in ("train", "test"))
    finally:
        socket.setdefaulttimeout(patience)
    vectorizer = CountVectorizer(token_pattern=r"(?u)\b[a-z]{2,}\b").fit(test)
    return vectorizer.transform(train), vectorizer.transform(test), vectorizer.get_feature_names_out()


def simulated():
    """Documents of ten topics; word 3.07 is one of the frequent ones of topic 3."""
    rng = np.random.default_rng(0)
    topics = np.kron(np.eye(10), rng.dirichlet(np.full(50, 0.3))) * 0.9 + 0.1 / 500
    shares = rng.dirichlet(np.full(10, 0.1), 12_000)
    counts = rng.poisson(30 * shares @ topics)
    words = np.array([f"{k}.{j:02d}" for k in range(10) for j in range(50)])
    return sparse.csr_array(counts[:10_000]), sparse.csr_array(counts[10_000:]), words


try:
    train, test, words = newsgroups()
    title = "20 Newsgroups"
except OSError as error:
    print(f"20 NEWSGROUPS ARE NOT TO BE HAD HERE ({error}). THE DOCUMENTS BELOW ARE SIMULATED.")
    train, test, words = simulated()
    title = "simulated documents"

spread = np.asarray((test > 0).sum(axis=0)).ravel()  # in how many of the public documents a word is
spread[[word in STOP for word in words]] = 0
kept = np.sort(np.argsort(-spread, kind="stable")[:1000])
train, test, words = train[:, kept], test[:, kept], words[kept]
print(f"{title}: {train.shape[0]} documents to learn from, {test.shape[0]} to test on, {len(words)} words")

# %%
# Ten topics at epsilon 4
# -----------------------
# Each panel shows the words of largest posterior mean probability, with 90% credible intervals, which include the
# noise of privacy. Some topics are what a reader of newsgroups expects; others are mixtures of what is left.
# The words at the top were chosen for being large, by means that hold noise: an interval speaks of one word that you
# had in mind, and the largest of a thousand noisy means is a little too large.

model = DPLatentDirichletAllocation(n_components=10, epsilon=4.0, random_state=0).fit(train)
print(model.privacy_spent_)
low, high = np.quantile(model.posterior_samples_["topics"], [0.05, 0.95], axis=0)

fig, panels = plt.subplots(2, 5, figsize=(13, 6), sharex=True, layout="constrained")
for k, ax in enumerate(panels.flat):
    top = np.argsort(-model.topics_[k])[:8][::-1]
    ax.barh(words[top], model.topics_[k, top], color="C0", alpha=0.35)
    ax.hlines(words[top], low[k, top], high[k, top], color="C0", lw=2.5)
    ax.set_title(f"topic {k}", fontsize=10, loc="left")
    ax.spines[["top", "right"]].set_visible(False)
fig.supxlabel("probability of the word in the topic, with 90% interval", fontsize=10)
fig.suptitle(f"{title}: ten private topics (epsilon 4, delta 1e-5, per document)")

# %%
# What are they worth?
# --------------------
# Half of the words of each test document, at random, give its topic proportions; the other half is scored. Lower is
# better. This works with any model that has `transform` and `components_`, so scikit-learn's can be measured alike.

rng = np.random.default_rng(0)
scored = sparse.csr_matrix(test[:1500], dtype=float)
seen, unseen = scored.copy(), scored.copy()
seen.data = rng.binomial(scored.data.astype(int), 0.5).astype(float)
unseen.data = scored.data - seen.data
document, word = unseen.nonzero()


def perplexity(model):
    """Of the words that the topic proportions have not seen."""
    topics = model.components_ / model.components_.sum(axis=1, keepdims=True)
    chance = np.einsum("ik,ik->i", model.transform(seen)[document], topics[:, word].T)
    times = np.asarray(unseen[document, word]).ravel()
    return np.exp(-times @ np.log(chance) / times.sum())


levels = [0.5, 1.0, 2.0, 4.0, 8.0]
private = [perplexity(DPLatentDirichletAllocation(10, epsilon=level, random_state=1).fit(train)) for level in levels]
no_noise = perplexity(DPLatentDirichletAllocation(10, epsilon=float("inf"), random_state=1).fit(train))
not_private = perplexity(LatentDirichletAllocation(10, learning_method="online", max_iter=5, random_state=0).fit(train))
counts = np.asarray(train.sum(axis=0)).ravel() + 0.1
no_topics = np.exp(-np.asarray(unseen.sum(axis=0)).ravel() @ np.log(counts / counts.sum()) / unseen.sum())

fig, ax = plt.subplots(figsize=(9, 4.2), layout="constrained")
ax.plot(levels, private, "o-", color="C0", label="ten private topics")
ax.axhline(no_topics, color="0.6", ls=":", label="frequencies of words, not private")
ax.axhline(not_private, color="0.2", ls="--", lw=1, label="scikit-learn's ten topics, not private")
ax.axhline(no_noise, color="C0", ls="--", lw=1, label="the same model without noise")
ax.set_xscale("log", base=2)
ax.set_xticks(levels, [f"{level:g}" for level in levels])
ax.set(xlabel="epsilon", ylabel="perplexity of held-out words", title=title)
fig.legend(loc="outside right upper", frameon=False)
ax.spines[["top", "right"]].set_visible(False)
plt.show()

# %%
# On the newsgroups, topics at epsilon 0.5 are worth no more than the frequencies of words. From epsilon 2 on they do
# as well as scikit-learn's (five passes online, which is not the best that can be had without privacy), and what
# noise still costs is the distance to the same model without it.
