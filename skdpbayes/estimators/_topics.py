"""Private topic models."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
from scipy import sparse
from sklearn.utils.metadata_routing import UNUSED
from sklearn.utils.validation import check_is_fitted

from skdpbayes.checks import check_number, warn_user
from skdpbayes.estimators._base import Outcome
from skdpbayes.estimators._posterior import DecompositionEstimator
from skdpbayes.facts import Facts
from skdpbayes.intake.documents import Documents
from skdpbayes.intake.reading import Reader
from skdpbayes.intake.rows import as_numeric, counted
from skdpbayes.plans.settings import Bounds, Defaults, Task
from skdpbayes.privacy import PrivacyLedger

if TYPE_CHECKING:
    import pandas as pd

    from skdpbayes.plans.plan import Plan


_JUDGED = 50  # draws from which the number of topics learnt is judged
_LEAST_COUNT = 0.25  # of an average word in a topic, over the noise, below which a plan hints


class DPLatentDirichletAllocation(DecompositionEstimator):
    """Topic model fitted by variational Bayes, under (epsilon, delta)-differential privacy.

    Replaces `sklearn.decomposition.LatentDirichletAllocation`. The unit of privacy is one document,
    a row of word counts in X: the fitted estimator with all its attributes, and every noisy sum
    released during the fit, are (epsilon, delta)-differentially private. The vocabulary (the
    columns of X) must be public; a vocabulary taken from the documents reveals their words.
    `transform` does not protect the documents that it is given.

    Parameters
    ----------
    n_components : int, default=10
        Number of topics.
    epsilon : float, default=1.0
        Privacy budget; ``float("inf")`` gives non-private variational Bayes.
    delta : float, default=1e-5
        Probability with which the privacy bound may fail; well below one over the number of
        documents.
    doc_topic_prior : float, default=None
        Concentration of the Dirichlet prior of a document's topics. None: ``1 / n_components``.
    topic_word_prior : float, default=None
        Concentration of the Dirichlet prior of a topic's words. None: ``1 / n_components``.
    solver : {"vips", "dpvi", "na-dpvi", "sgld"}, default="vips"
        How topics are fitted; each solver releases noisy sums of expected counts. ``"vips"``:
        variational Bayes. ``"dpvi"``: variational inference, with releases at draws of the guide.
        ``"na-dpvi"``: as ``"vips"``, corrected for the information that unknown topics hide, with
        wider intervals. ``"sgld"``: Langevin dynamics, for large budgets: where none of its steps
        is private enough it is refused, with the number of documents that would do.
    adjacency : {"zero_out", "add_remove", "replace_one"}, default="zero_out"
        Neighbouring relation. Under ``"add_remove"`` the number of documents is private too, and
        `sampling_rate` must be given.
    numerics : {"secure", "fast"}, default="secure"
        Arithmetic of sums and noise. "secure" is integer arithmetic, for which the guarantee is
        proved. "fast" is floating point: the proof assumes exact arithmetic, and an adversary who
        knows all other rows may learn from the last bits of a release.
    max_rows_per_person : int, default=None
        Largest number of documents of an author. It makes the author the unit of privacy: `fit`
        takes the authors' names as `groups`, and keeps at most this many documents of each, evenly
        spaced, each with topic proportions of its own. None: the document is the unit.
    ledger : PrivacyLedger, default=None
        Budget to charge; it refuses a fit that exceeds it. None: the ledger opened by ``with``, if
        any.
    max_document_norm : float, default=1.0
        l2 bound on a document's expected counts by topic and word. At the default, nearly every
        document is scaled down to it, so that long documents count no more than short ones, and the
        noise is smallest.
    sampling_rate : float, default=None
        Probability with which each document enters a round. None: 1.
    n_steps : int, default=None
        Number of releases, including two for the starting values. None: 6, or 32 without noise
        (62 for ``"dpvi"``); for ``"sgld"`` 202.
    max_doc_update_iter : int, default=100
        Largest number of iterations in `transform`, `score` and `perplexity`, as in scikit-learn.
        `fit` runs a fixed number.
    mean_change_tol : float, default=1e-3
        Tolerance that stops these iterations, as in scikit-learn.
    n_posterior_samples : int, default=100
        Number of posterior draws in `posterior_samples_`.
    random_state : None, int, RandomState or Generator, default=None
        None draws keys from the operating system. Any other value makes the noise reproducible,
        which voids the guarantee: for tests only.
    verbose : int, default=0
        If positive, print the plan and progress: public quantities only.

    Attributes
    ----------
    components_ : array of shape (n_components, n_features)
        Counts of each word in each topic, plus the prior: parameters of the Dirichlet posterior at
        the posterior mean of the counts. A document that is scaled down counts for fewer words than
        it has.
    topics_ : array of shape (n_components, n_features)
        Posterior mean of each topic's distribution of words.
    exp_dirichlet_component_ : array of shape (n_components, n_features)
        Exponential of the expected logarithm of the topics.
    doc_topic_prior_, topic_word_prior_ : float
        Concentrations of the priors.
    posterior_ : TopicsPosterior or TopicsDraws
        Posterior of the topics, flattened (``"sgld"``: iterates of a chain), with ``mean``, ``std``
        and ``sample``.
    posterior_samples_ : dict
        Draws ``"topics"``, of shape (n_posterior_samples, n_components, n_features), computed at
        each access.
    n_topics_learnt_ : float
        Effective number of topics learnt, between 1 (topics are told apart by noise alone) and
        `n_components`: one plus, summed over the directions in which topics differ, the share of
        their squared difference that is not posterior variance. It follows from the releases.
    n_iter_, n_batch_iter_ : int
        Number of releases.
    privacy_spent_ : PrivacySpent
        Cost of the fit, and the conditions under which the guarantee holds.
    usable_records_ : NoisyCount
        Noisy number of usable records: those without missing cells or unknown labels.
    diagnostics_ : dict
        Standard deviation of the noise in the averaged sums; for ``"na-dpvi"`` also the mean share
        of information that is observed. For ``"sgld"`` split R-hat and effective sample size of
        each probability, and the share of counts whose privacy noise exceeds the chain's own.
    n_features_in_, feature_names_in_
        As in scikit-learn.

    Notes
    -----
    There is no `bound_`, since the bound of the training documents is not released. `score` and
    `perplexity` do not protect the documents that they are given.

    A document with NaN, infinity or a negative count is treated as empty in `fit`, without a
    warning.

    Examples
    --------
    >>> import numpy as np
    >>> from skdpbayes import DPLatentDirichletAllocation
    >>> rng = np.random.default_rng(0)
    >>> topics = np.repeat(np.eye(2), 10, axis=1) / 10
    >>> X = rng.poisson(30 * rng.dirichlet([0.2, 0.2], size=3000) @ topics)
    >>> model = DPLatentDirichletAllocation(n_components=2, epsilon=1.0).fit(X)
    >>> model.transform(X[:5]).shape
    (5, 2)
    >>> bool(np.abs(np.sort(model.topics_[:, 0]) - [0, 0.1]).max() < 0.02)
    True
    """

    _record = "document"
    _defaults = Defaults(
        rounds=(4, 30),
        solver_rounds={"dpvi": (4, 60), "sgld": (200, 200)},
        opening_shares=(0.4, 0.15),
        solver_shares={"na-dpvi": (0.2, 0.15)},
        opening_words="{} releases go",
    )

    _dims: ClassVar = {"topics": ("topic", "feature")}
    _estimated = _positive = ("topics",)
    # `normalize` is an option, not metadata of rows, so it is not routed.
    __metadata_request__transform: ClassVar = {"normalize": UNUSED}
    _fitted = (
        *DecompositionEstimator._fitted,
        *("topics_", "exp_dirichlet_component_", "n_batch_iter_", "n_topics_learnt_"),
        *("doc_topic_prior_", "topic_word_prior_"),
    )

    def __init__(
        self,
        n_components: int = 10,
        *,
        epsilon: float = 1.0,
        delta: float = 1e-5,
        doc_topic_prior: float | None = None,
        topic_word_prior: float | None = None,
        solver: str = "vips",
        adjacency: str = "zero_out",
        numerics: str = "secure",
        max_rows_per_person: int | None = None,
        ledger: PrivacyLedger | None = None,
        max_document_norm: float = 1.0,
        sampling_rate: float | None = None,
        n_steps: int | None = None,
        max_doc_update_iter: int = 100,
        mean_change_tol: float = 1e-3,
        n_posterior_samples: int = 100,
        random_state: int | np.random.RandomState | np.random.Generator | None = None,
        verbose: int = 0,
    ) -> None:
        self.n_components = n_components
        self.epsilon = epsilon
        self.delta = delta
        self.doc_topic_prior = doc_topic_prior
        self.topic_word_prior = topic_word_prior
        self.solver = solver
        self.adjacency = adjacency
        self.numerics = numerics
        self.max_rows_per_person = max_rows_per_person
        self.ledger = ledger
        self.max_document_norm = max_document_norm
        self.sampling_rate = sampling_rate
        self.n_steps = n_steps
        self.max_doc_update_iter = max_doc_update_iter
        self.mean_change_tol = mean_change_tol
        self.n_posterior_samples = n_posterior_samples
        self.random_state = random_state
        self.verbose = verbose

    # ------------------------------------------------------------------ fitting

    def fit(self, X: Any, y: Any = None, *, groups: Any = None) -> Self:
        """Fit the posterior of the topics to private documents.

        Parameters
        ----------
        X : array-like or sparse matrix of shape (n_samples, n_features)
            Counts of words.
        y : ignored
        groups : array-like of shape (n_samples,), default=None
            The author of each document, where `max_rows_per_person` is set.

        Returns
        -------
        self

        Raises
        ------
        ValueError
            For parameters out of range, shapes and dtypes, which are public. Never for the values
            in a document.
        """
        self._fit(X, y, groups)
        return self

    @classmethod
    def _model_types(cls) -> tuple[type, ...]:
        from skdpbayes.models.lda import LatentDirichletAllocation

        return (LatentDirichletAllocation,)

    def _check_parameters(self) -> None:
        super()._check_parameters()
        priors = {
            "doc_topic_prior": self.doc_topic_prior,
            "topic_word_prior": self.topic_word_prior,
        }
        for name, prior in priors.items():
            check_number(name, prior, 1e-6, 1e6, none=True, closed=True)
        check_number("max_document_norm", self.max_document_norm, 1e-6, 1e6, closed=True)
        check_number("max_doc_update_iter", self.max_doc_update_iter, 0, 10**6, integral=True)
        check_number("mean_change_tol", self.mean_change_tol, 0, 1e6, closed=True)

    def _prior(self, given: float | None) -> float:
        """Concentration of a prior, from its parameter."""
        return 1 / self.n_components if given is None else float(given)

    def _reader(self) -> Reader:
        return Documents()

    def _task(self, facts: Facts) -> Task:
        from skdpbayes.models.lda import LatentDirichletAllocation

        d = facts.n_features
        private = math.isfinite(self.epsilon)
        model = LatentDirichletAllocation(
            n_words=d,
            n_components=int(self.n_components),
            n_paired=d if d <= 512 else 256,
            doc_topic_prior=np.float32(self._prior(self.doc_topic_prior)),
            topic_word_prior=np.float32(self._prior(self.topic_word_prior)),
            document_norm=np.float32(self.max_document_norm if private else 2.0**20),
            private=np.float32(private),
        )
        return Task(model, Bounds())

    def _finish(self, plan: Plan, outcome: Outcome) -> None:
        from scipy.special import digamma

        super()._finish(plan, outcome)
        self.n_batch_iter_ = self.n_iter_
        self.doc_topic_prior_ = self._prior(self.doc_topic_prior)
        self.topic_word_prior_ = self._prior(self.topic_word_prior)
        self.components_ = self.posterior_.components
        total = self.components_.sum(axis=1, keepdims=True)
        self.topics_ = self.components_ / total
        self.exp_dirichlet_component_ = np.exp(digamma(self.components_) - digamma(total))
        draws = self.sample_posterior(_JUDGED, self._draws_seed)["topics"]
        self.n_topics_learnt_ = _learnt(self.topics_, draws.var(axis=0))
        if "r_hat" in self.diagnostics_:
            self._warn_unless_mixed()

    def _hints(self, plan: Plan) -> Iterator[str]:
        from skdpbayes.plans.statistics import TYPICAL_COUNT

        n, own, most = plan.facts.n_rows, plan.spec.steps[-1], plan.spec.most_rows
        if n is None or not math.isfinite(self.epsilon):
            return
        cells = plan.facts.n_features * int(self.n_components)
        # Of averaged counts, in units of `max_document_norm`.
        noise = own.noise_multiplier / own.sampling_rate / own.steps**0.5 * most**0.5
        count = TYPICAL_COUNT * n * most / cells  # at most, where records are persons
        if count < noise * _LEAST_COUNT:
            yield (
                f"An average word has a count of {count:.2g} in a topic, and the noise a standard "
                f"deviation of {noise:.2g}: rare words, or all, cannot be learnt. Take at most "
                f"{max(int(cells * count / (noise * _LEAST_COUNT)), 1)} words times topics "
                f"(now {cells}), or a larger epsilon."
            )

    def sample_posterior(
        self, n_samples: int = 100, random_state: int | np.random.Generator | None = None
    ) -> dict[str, np.ndarray]:
        """Posterior draws, a dict like `posterior_samples_`.

        Parameters
        ----------
        n_samples : int, default=100
        random_state : None, int or numpy.random.Generator
        """
        draws = self._fresh_draws(n_samples, random_state)
        return {"topics": draws.reshape(n_samples, *self.components_.shape)}

    def summary(
        self,
        level: float = 0.9,
        *,
        feature_names: Sequence[str] | None = None,
        n_words: int = 10,
    ) -> pd.DataFrame:
        """Table of the most probable words of each topic.

        Parameters
        ----------
        level : float, default=0.9
            Mass of the equal-tailed intervals, in (0, 1).
        feature_names : sequence of str, default=None
            Words, in the order of the columns, such as a vectorizer's ``get_feature_names_out()``.
            None: those of the data frame, else x0, x1 and so on.
        n_words : int, default=10
            Number of words of each topic.

        Returns
        -------
        table : pandas.DataFrame
            With a row for each topic and word, the most probable word first. Its columns are those
            of `DPBayesianLogisticRegression.summary`.
        """
        check_number("n_words", n_words, 1, integral=True, closed=True)
        table = super().summary(level, feature_names=feature_names)
        topics, words = self.topics_.shape
        best = np.argsort(-self.topics_, axis=1, kind="stable")[:, :n_words]
        return table.iloc[(best + words * np.arange(topics)[:, None]).ravel()]

    @property
    def bound_(self) -> float:
        """Not available: raises an `AttributeError` with the reason."""
        raise AttributeError(
            "bound_ does not exist: the bound of the training documents is not among the releases."
        )

    @property
    def partial_fit(self) -> Any:
        """Not available: raises an `AttributeError` that says what to use."""
        raise AttributeError(
            "partial_fit does not exist: the noise of a release is as large for few documents as "
            "for many. Fit all documents at once, with sampling_rate below 1 for small batches."
        )

    def sample(
        self,
        n_samples: int = 1,
        random_state: int | np.random.Generator | None = None,
        *,
        n_words: int = 100,
    ) -> np.ndarray:
        """Private synthetic documents, from the mean topics and the prior of the proportions.

        Parameters
        ----------
        n_samples : int, default=1
        random_state : None, int or numpy.random.Generator
        n_words : int, default=100
            Words of each document; lengths are not learnt.

        Returns
        -------
        X : array of shape (n_samples, n_features)
            Counts of words.
        """
        check_is_fitted(self)
        check_number("n_samples", n_samples, 0, integral=True)
        check_number("n_words", n_words, 1, integral=True, closed=True)
        rng = np.random.default_rng(random_state)
        concentration = np.full((n_samples, len(self.topics_)), self.doc_topic_prior_)
        return _documents_from(rng, concentration, self.topics_, np.full(n_samples, n_words))

    def sample_posterior_predictive(
        self, X: Any, n_samples: int = 100, random_state: int | np.random.Generator | None = None
    ) -> np.ndarray:
        """Documents with the topics and lengths of given ones, from the posterior predictive.

        Topics are a posterior draw; proportions are drawn given the document and the mean topics.

        Parameters
        ----------
        X : array-like or sparse matrix of shape (n_documents, n_features)
            Not protected.
        n_samples : int, default=100
        random_state : None, int or numpy.random.Generator

        Returns
        -------
        counts : array of shape (n_samples, n_documents, n_features)
        """
        check_number("n_samples", n_samples, 0, integral=True)
        rng = np.random.default_rng(random_state)
        X = self._documents(X)
        concentration = self._scikit_learn().transform(X, normalize=False)
        lengths = np.rint(np.asarray(X.sum(axis=1)).ravel()).astype(np.int64)
        draws = self.sample_posterior(n_samples, rng)["topics"].astype(np.float64)
        return np.stack([_documents_from(rng, concentration, topics, lengths) for topics in draws])

    # --------------------------------------------------------------- documents

    def transform(self, X: Any, *, normalize: bool = True) -> np.ndarray:
        """Topic proportions of documents.

        Parameters
        ----------
        X : array-like or sparse matrix of shape (n_samples, n_features)
            Not protected. A document with NaN, infinity or a negative count is treated as empty,
            with a warning.
        normalize : bool, default=True
            False returns the concentrations of the Dirichlet posterior instead, which sum to the
            number of words plus the prior.

        Returns
        -------
        proportions : array of shape (n_samples, n_components)
        """
        return self._scikit_learn().transform(self._documents(X), normalize=normalize)

    def score(self, X: Any, y: Any = None) -> float:
        """Variational bound of the log-likelihood of all documents, as in scikit-learn."""
        del y
        return float(self._scikit_learn().score(self._documents(X)))

    def perplexity(self, X: Any) -> float:
        """Exponential of minus the bound per word, as in scikit-learn; lower is better."""
        return float(self._scikit_learn().perplexity(self._documents(X)))

    _scorings = ("log_density",)

    def _log_volume(self, facts: Facts) -> float:
        return math.log(facts.n_features)

    def _log_density(self, X: Any, y: Any) -> np.ndarray:
        """Log probability per word of half of each document, given the other half.

        Counts are split evenly; of an odd count, even columns give the larger part. NaN for a
        document without words.
        """
        del y
        X, _ = counted(as_numeric(X))
        given = X.copy()
        given.data = np.floor((X.data + 1 - X.indices % 2) / 2)
        left = X.data - given.data
        proportions = self.transform(given)
        row = np.repeat(np.arange(X.shape[0]), np.diff(X.indptr))
        log = np.log(np.einsum("ik,ki->i", proportions[row], self.topics_[:, X.indices]))
        total, words = (np.bincount(row, values, X.shape[0]) for values in (left * log, left))
        return total / words

    def completion_perplexity(
        self, X: Any, random_state: int | np.random.Generator | None = 0
    ) -> float:
        """Perplexity of half of the words of each document, given the other half.

        Unlike `perplexity`, it uses the likelihood of held-out words at the mean topics, so that it
        can compare models whose bounds are not equally tight.

        Parameters
        ----------
        X : array-like or sparse matrix of shape (n_samples, n_features)
            Integer counts. Not protected.
        random_state : None, int or numpy.random.Generator, default=0
            Randomness of the split, in which each word falls into either half.

        Returns
        -------
        perplexity : float
            ``exp(-log-likelihood per word)``.
        """
        X = self._documents(X)
        if (X.data != np.rint(X.data)).any():
            raise ValueError(
                "completion_perplexity splits words at random: counts must be integers."
            )
        rng = np.random.default_rng(random_state)
        given, left = X.copy(), X.copy()
        given.data = rng.binomial(X.data.astype(np.int64), 0.5).astype(np.float64)
        left.data = X.data - given.data
        proportions = self._scikit_learn().transform(given)
        owner = np.repeat(np.arange(X.shape[0]), np.diff(X.indptr))
        blocks = np.array_split(np.arange(X.nnz), max(1, X.nnz * self.n_components // 2**24))
        log = sum(
            left.data[b]
            @ np.log(np.einsum("ik,ki->i", proportions[owner[b]], self.topics_[:, X.indices[b]]))
            for b in blocks
        )
        return float(np.exp(-log / left.data.sum()))

    def _documents(self, X: Any) -> sparse.csr_matrix:
        check_is_fitted(self)
        rows, null = counted(self._reader().numeric(self, X, reset=False))
        if null.any():
            warn_user(
                f"{null.sum()} of these documents hold NaN, infinity or negative counts: they are "
                "taken for empty."
            )
        return sparse.csr_matrix(rows, dtype=np.float64)

    def _scikit_learn(self) -> Any:
        """Model of scikit-learn with these topics, for inference about documents."""
        from sklearn.decomposition import LatentDirichletAllocation

        check_is_fitted(self)
        model = LatentDirichletAllocation(
            self.n_components,
            max_doc_update_iter=self.max_doc_update_iter,
            mean_change_tol=self.mean_change_tol,
        )
        model.components_ = self.components_
        model.exp_dirichlet_component_ = self.exp_dirichlet_component_
        model.doc_topic_prior_ = self.doc_topic_prior_
        model.topic_word_prior_ = self.topic_word_prior_
        model.n_features_in_ = self.n_features_in_
        return model


def _learnt(topics: np.ndarray, variance: np.ndarray) -> float:
    """Effective number of topics learnt, from their posterior means and variances, (K, V)."""
    weight = 1 / np.sqrt(topics.mean(axis=0))
    away = (topics - topics.mean(axis=0)) * weight
    values, vectors = np.linalg.eigh(away @ away.T)
    noise = np.square(vectors.T) @ (variance * weight**2).sum(axis=1)
    differ = values[1:].clip(0)  # the first is zero: deviations sum to zero
    return float(1 + (differ / (differ + noise[1:]).clip(1e-300)).sum())


def _documents_from(
    rng: np.random.Generator, concentration: np.ndarray, topics: np.ndarray, lengths: np.ndarray
) -> np.ndarray:
    """Counts of words of documents with Dirichlet proportions, (n, V)."""
    weights = rng.standard_gamma(concentration) + 1e-300
    proportions = weights / weights.sum(axis=1, keepdims=True)
    probabilities = proportions @ (topics / topics.sum(axis=1, keepdims=True))
    probabilities = probabilities / probabilities.sum(axis=1, keepdims=True)
    return rng.multinomial(lengths, probabilities)
