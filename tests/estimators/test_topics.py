"""Private topics as their users see them."""

import pickle

import jax
import numpy as np
import pytest
from cases import slow_but
from scipy import sparse
from scipy.optimize import linear_sum_assignment
from sklearn.base import clone
from sklearn.decomposition import LatentDirichletAllocation
from sklearn.exceptions import NotFittedError
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from whitebox import assert_replayed, one_program

from skdpbayes import DPLatentDirichletAllocation, inference
from skdpbayes.estimators._base import Outcome, draws_rng
from skdpbayes.mechanism.keys import fit_keys
from skdpbayes.models.base import NORM

N, V, K, LONGEST, MOST = 4000, 60, 3, 32, 40
TOPICS = np.random.default_rng(7).dirichlet(np.full(V, 0.1), K)


def documents(seed, n=N):
    rng = np.random.default_rng(seed)
    proportions = rng.dirichlet(np.full(K, 0.2), n) @ TOPICS
    return rng.multinomial(np.clip(rng.poisson(26, n), 1, LONGEST), proportions).astype(float)


X = documents(0)
FEW = X[:800]  # for scikit-learn, which takes longer


@pytest.fixture(autouse=True)
def fits():
    with one_program(MOST, 2**17) as kept:
        yield kept


def estimator(epsilon=1.0, **parameters):
    return DPLatentDirichletAllocation(
        **{"n_components": K, "epsilon": epsilon, "random_state": 0} | parameters
    )


@pytest.fixture(scope="module")
def fitted():
    with one_program(MOST, 2**17):
        return estimator().fit(X)


@pytest.fixture(scope="module")
def without_noise():
    with one_program(MOST, 2**17):
        return estimator(np.inf).fit(FEW)


def order_of(model):
    """Which fitted topic is which true one."""
    distance = np.abs(TOPICS[:, None] - model.topics_[None]).sum(axis=2)
    return linear_sum_assignment(distance)[1]


def theirs_of(model, **parameters):
    """Scikit-learn's model with these topics."""
    theirs = LatentDirichletAllocation(K, random_state=0, **parameters)
    theirs.components_, theirs.exp_dirichlet_component_ = (
        model.components_,
        model.exp_dirichlet_component_,
    )
    theirs.doc_topic_prior_ = theirs.topic_word_prior_ = 1 / K
    theirs.n_features_in_, theirs.random_state_ = V, np.random.RandomState(0)
    theirs.n_batch_iter_ = 1
    return theirs


# Without noise


def test_without_noise_topics_are_a_fixed_point_of_variational_bayes(without_noise):
    theirs = theirs_of(without_noise, max_doc_update_iter=1000, mean_change_tol=1e-5)
    theirs._em_step(FEW, total_samples=len(FEW), batch_update=True)
    moved = (
        theirs.components_ / theirs.components_.sum(axis=1, keepdims=True) - without_noise.topics_
    )
    assert np.abs(moved).max() < 0.002
    np.testing.assert_allclose(without_noise.components_.sum(), FEW.sum() + V, rtol=1e-3)


@pytest.mark.slow
def test_without_noise_the_bound_is_near_to_scikit_learns_best(without_noise):
    theirs = LatentDirichletAllocation(K, learning_method="batch", max_iter=30, random_state=0).fit(
        FEW
    )
    assert without_noise.perplexity(FEW) < 1.005 * theirs.perplexity(FEW)


@pytest.mark.slow
def test_without_noise_na_dpvi_is_vips_and_dpvi_ends_about_there(without_noise):
    same = estimator(np.inf, solver="na-dpvi").fit(FEW)
    np.testing.assert_allclose(same.topics_, without_noise.topics_, atol=1e-4)
    near = estimator(np.inf, solver="dpvi").fit(FEW)
    away = np.abs(near.topics_[order_of(near)] - without_noise.topics_[order_of(without_noise)])
    assert away.sum(axis=1).max() < 0.06, "draws of the posterior move it by little"
    assert near.perplexity(FEW) < 1.005 * without_noise.perplexity(FEW)


# With noise


@pytest.mark.filterwarnings("ignore:The chains have not mixed")
@pytest.mark.parametrize(
    ("solver", "epsilon"),
    [
        pytest.param("na-dpvi", 1.0, marks=pytest.mark.slow),
        pytest.param("dpvi", 1.0, marks=pytest.mark.slow),
        pytest.param("sgld", 8.0, marks=pytest.mark.slow),
        pytest.param("sgld", np.inf, marks=pytest.mark.slow),
    ],
)
def test_every_solver_finds_topics_and_covers_them(solver, epsilon):
    model = estimator(epsilon, solver=solver).fit(X)
    order = order_of(model)
    assert np.abs(model.topics_[order] - TOPICS).sum(axis=1).max() < 0.25
    draws = model.sample_posterior(300, 0)["topics"][:, order]
    np.testing.assert_allclose(draws.sum(axis=2), 1, rtol=1e-4)
    low, high = np.quantile(draws, [0.05, 0.95], axis=0)
    large = TOPICS > 0.01
    assert ((low <= TOPICS) & (TOPICS <= high))[large].mean() > (0.6 if epsilon < np.inf else 0.4)
    assert 2.5 < model.n_topics_learnt_ <= K


def test_a_chain_that_cannot_mix_is_refused_with_what_would_do():
    with pytest.raises(ValueError, match=r"needs at least \d+ documents for 180 counts") as error:
        estimator(0.3, solver="sgld").plan(N, V)
    text = str(error.value)
    assert "no step is small enough" in text and "solver='na-dpvi'" in text
    needed = int(text.split("at least ")[1].split()[0])
    assert needed > N and estimator(0.3, solver="sgld").plan(needed, V).n_steps == 202
    most = int(text.split("at most ")[1].split()[0])
    assert estimator(0.3, solver="sgld").plan(N, most // K).n_steps == 202
    # Four documents of a person take twice the noise, and tell as much as four authors'.
    persons = estimator(0.3, solver="sgld", max_rows_per_person=4)
    assert persons.plan(needed, V).n_steps == 202
    with pytest.raises(ValueError, match="no step is small enough"):
        persons.plan(3 * needed // 4, V)


def test_topics_that_were_not_learnt_are_not_counted(fitted):
    assert 2.5 < fitted.n_topics_learnt_ <= K
    assert estimator(0.01).fit(FEW).n_topics_learnt_ < 1.5
    assert fitted.plan(N, V).hints == ()
    (hint,) = estimator(0.01).plan(800, V).hints
    assert "Take at most" in hint and "(now 180)" in hint
    few = estimator(0.01, max_rows_per_person=4).plan(800, V).hints[0]
    noise, of_persons = (float(own.split("deviation of ")[1].split(":")[0]) for own in (hint, few))
    assert of_persons == pytest.approx(2 * noise, rel=0.05)
    assert estimator(np.inf).plan(5, V).hints == ()


def test_topics_are_found_and_intervals_cover_them(fitted):
    inside, wide = [], []
    for seed in range(4):
        model = fitted if seed == 0 else estimator(random_state=seed).fit(documents(seed))
        order = order_of(model)
        assert np.abs(model.topics_[order] - TOPICS).sum(axis=1).max() < 0.25
        draws = model.sample_posterior(300, 0)["topics"][:, order]
        low, high = np.quantile(draws, [0.05, 0.95], axis=0)
        large = TOPICS > 0.01
        inside.append(((low <= TOPICS) & (TOPICS <= high))[large])
        wide.append((high - low)[large])
    assert 0.75 <= np.mean(inside)
    assert np.mean(wide) < 0.05, "intervals that say nothing"


def test_more_budget_is_better(fitted):
    Z = documents(100, 500)
    tight, loose = (
        m.completion_perplexity(Z) for m in (estimator(0.1).fit(X), estimator(8.0).fit(X))
    )
    truth = theirs_of(fitted)
    truth.components_ = truth.exp_dirichlet_component_ = TOPICS + 1e-9
    assert loose < fitted.completion_perplexity(Z) * 1.01 < tight
    assert loose < 25, "the uniform distribution has 60"


def test_synthetic_documents_have_the_topics_of_the_fit(fitted):
    Z = fitted.sample(2000, 0, n_words=30)
    assert Z.shape == (2000, V) and (Z.sum(axis=1) == 30).all()
    np.testing.assert_array_equal(Z, fitted.sample(2000, 0, n_words=30))
    words = Z.sum(axis=0) / Z.sum()
    np.testing.assert_allclose(words, fitted.topics_.mean(axis=0), atol=0.01)
    # A document has few topics, as the prior says, so that its words go together.
    own = np.sort(fitted.transform(Z), axis=1)[:, -1].mean()
    prior = np.random.default_rng(0).dirichlet(np.full(K, 1 / K), 9999).max(axis=1).mean()
    assert own == pytest.approx(prior, abs=0.08)
    with pytest.raises(ValueError, match="n_words must be"):
        fitted.sample(1, n_words=0)


def test_replicated_documents_have_the_lengths_and_topics_of_given_ones(fitted):
    Z = documents(100, 200)
    again = fitted.sample_posterior_predictive(Z, 30, 0)
    assert again.shape == (30, 200, V)
    np.testing.assert_array_equal(again.sum(axis=2), np.broadcast_to(Z.sum(axis=1), (30, 200)))
    expected = fitted.transform(Z) @ fitted.topics_
    found = again.mean(axis=0) / Z.sum(axis=1)[:, None]
    assert np.corrcoef(expected.ravel(), found.ravel())[0, 1] > 0.95


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The chains have not mixed")
def test_a_grid_search_compares_all_solvers():
    choice = {"solver": ["dpvi", "na-dpvi", "sgld", "vips"]}
    search = GridSearchCV(estimator(8.0), choice, cv=2, error_score="raise").fit(X)
    assert np.isfinite(search.cv_results_["mean_test_score"]).all()


# As scikit-learn has it


def test_documents_are_treated_as_scikit_learn_does_with_these_topics(fitted):
    theirs = theirs_of(fitted)
    for kind in (np.asarray, sparse.csr_matrix):
        Z = kind(X[:300])
        np.testing.assert_allclose(fitted.transform(Z), theirs.transform(Z), rtol=1e-9)
        np.testing.assert_allclose(
            fitted.transform(Z, normalize=False), theirs.transform(Z, normalize=False), rtol=1e-9
        )
        assert fitted.score(Z) == pytest.approx(theirs.score(Z), rel=1e-9)
        assert fitted.perplexity(Z) == pytest.approx(theirs.perplexity(Z), rel=1e-9)
    np.testing.assert_allclose(
        fitted.topics_, fitted.components_ / fitted.components_.sum(axis=1)[:, None]
    )
    np.testing.assert_allclose(fitted.posterior_.mean.reshape(K, V), fitted.topics_)


def test_fitted_attributes(fitted):
    assert (
        fitted.components_.shape
        == fitted.topics_.shape
        == fitted.exp_dirichlet_component_.shape
        == (K, V)
    )
    assert (fitted.components_ > 0).all()
    assert (fitted.doc_topic_prior_, fitted.topic_word_prior_) == (1 / K, 1 / K)
    assert fitted.n_iter_ == fitted.n_batch_iter_ == 6
    assert fitted.posterior_samples_["topics"].shape == (100, K, V)
    np.testing.assert_array_equal(
        fitted.posterior_samples_["topics"], fitted.posterior_samples_["topics"]
    )
    names = fitted.get_feature_names_out()
    assert list(names) == [f"dplatentdirichletallocation{k}" for k in range(K)]
    with pytest.raises(AttributeError, match="bound_ does not exist"):
        _ = fitted.bound_
    assert not hasattr(fitted, "partial_fit")
    with pytest.raises(AttributeError, match="Fit all documents at once, with sampling_rate"):
        fitted.partial_fit(X)
    assert fitted.privacy_spent_.public["n_samples"] == N


def test_completion_perplexity_scores_words_that_were_not_seen(fitted):
    Z = documents(100, 500)
    score = fitted.completion_perplexity(Z)
    assert (
        score
        == fitted.completion_perplexity(sparse.csr_array(Z))
        == fitted.completion_perplexity(Z, 0)
    )
    uniform = pickle.loads(pickle.dumps(fitted))
    uniform.topics_ = np.full((K, V), 1 / V)
    assert uniform.completion_perplexity(Z) == pytest.approx(V)
    with pytest.raises(ValueError, match="counts must be integers"):
        fitted.completion_perplexity(Z + 0.5)


def test_documents_that_are_null_are_taken_for_empty_with_a_warning(fitted):
    Z = X[:3].copy()
    Z[0, 0], Z[1, 0] = np.nan, -1
    with pytest.warns(UserWarning, match="2 of these documents"):
        proportions = fitted.transform(Z)
    np.testing.assert_allclose(proportions[:2], 1 / K)
    np.testing.assert_allclose(proportions[2], fitted.transform(X[2:3])[0])


def test_in_a_pipeline_with_a_public_vocabulary():
    vocabulary = [f"word{j}" for j in range(V)]
    texts = [" ".join(np.repeat(vocabulary, row.astype(int))) for row in X[:500]]
    pipeline = make_pipeline(CountVectorizer(vocabulary=vocabulary), estimator()).fit(texts)
    assert pipeline.transform(texts[:4]).shape == (4, K)
    np.testing.assert_allclose(pipeline[-1].components_, estimator().fit(X[:500]).components_)


def test_clones_pickles_and_refits(fitted):
    again = pickle.loads(pickle.dumps(fitted))
    np.testing.assert_array_equal(again.transform(X[:9]), fitted.transform(X[:9]))
    with pytest.raises(NotFittedError):
        clone(fitted).transform(X)
    with pytest.raises(NotFittedError):
        _ = estimator().posterior_samples_
    model = estimator().fit(X)
    first = model.privacy_spent_
    assert (
        model.fit_transform(FEW).shape == (800, K)
        and model.privacy_spent_.cumulative == first.releases
    )


def test_sparse_and_dense_documents_give_the_same_fit(fitted):
    shuffled = sparse.coo_array(X)
    order = np.random.default_rng(0).permutation(shuffled.nnz)
    rows, columns = shuffled.coords
    shuffled = sparse.coo_array((shuffled.data[order], (rows[order], columns[order])), X.shape)
    for kind in (sparse.csr_matrix(X), sparse.csc_array(X), shuffled, X.astype(np.int32)):
        np.testing.assert_array_equal(estimator().fit(kind).components_, fitted.components_)


REFUSED = [
    ({"n_components": 0}, r"n_components must be an integer in \[1, 10000\], got 0"),
    ({"solver": "vi"}, "solver must be one of 'dpvi', 'na-dpvi', 'sgld', 'vips', got 'vi'"),
    ({"doc_topic_prior": 0}, "doc_topic_prior must be"),
    ({"topic_word_prior": -1}, "topic_word_prior must be"),
    ({"max_document_norm": 0}, "max_document_norm must be"),
    ({"max_doc_update_iter": 0}, "max_doc_update_iter must be"),
    ({"mean_change_tol": -1}, "mean_change_tol must be"),
    ({"n_steps": 2}, "n_steps=2 is too few: 2 releases go into the start. Take at least 3"),
    ({"sampling_rate": 1.5}, "sampling_rate must be"),
    ({"epsilon": 0}, "epsilon must be"),
    ({"adjacency": "add_remove"}, "sampling_rate=None takes the number of records from X"),
    ({"n_posterior_samples": 0}, "n_posterior_samples must be"),
]


@pytest.mark.parametrize(("parameters", "message"), REFUSED, ids=str)
def test_what_makes_no_sense_is_refused_before_anything_is_spent(parameters, message):
    model = estimator(**parameters)
    with pytest.raises(ValueError, match=message):
        model.fit(X)
    assert not hasattr(model, "privacy_spent_")


# Privacy


def test_a_document_that_holds_no_counts_is_as_an_empty_one():
    """Without an error, and without a trace."""
    empty = X.copy()
    empty[[3, 9, 20, 21]] = 0
    bad = empty.copy()
    bad[3, 0], bad[9] = -1, np.nan
    bad[20, :2], bad[21, 5] = [np.inf, 3], 1e39
    one, other = (estimator().fit(documents) for documents in (empty, bad))
    assert pickle.dumps(one) == pickle.dumps(other)


@pytest.mark.parametrize("count", slow_but([7.0, 1e4, 1e9, 1e30], 7.0, 1e30))
def test_a_document_of_huge_counts_moves_a_release_by_no_more_than_its_share(count, fits):
    other = X.copy()
    other[17] = 0
    estimator().fit(other)
    other[17, [2, 5]] = count
    estimator().fit(other)
    (model, _, _, one), (_, _, _, two) = fits
    moved = np.linalg.norm(two[0, :V].astype(float) - one[0, :V])
    assert 0.99 < moved <= NORM
    moved = np.abs(two[-1].astype(float) - one[-1])
    assert np.linalg.norm(moved) < 20, "what follows from the first two releases moves too"
    assert model.document_norm == 1


def test_the_number_of_documents_is_not_told_where_it_is_private(fits):
    hidden = [estimator(adjacency="add_remove", sampling_rate=0.6).fit(X[: N - k]) for k in (0, 1)]
    assert "n_samples" not in hidden[0].privacy_spent_.public
    assert repr(hidden[0].privacy_spent_) == repr(hidden[1].privacy_spent_)
    assert fits[0][2].sampling_rate == 0.6
    for a, b in zip(*(jax.tree.leaves(fit[:2]) for fit in fits), strict=True):
        np.testing.assert_array_equal(a, b)
    order = order_of(hidden[0])
    assert np.abs(hidden[0].topics_[order] - TOPICS).sum(axis=1).max() < 0.5


def test_what_is_spent_is_what_was_asked_for(fits):
    for adjacency in ("zero_out", "replace_one"):
        spent = estimator(adjacency=adjacency).fit(X).privacy_spent_
        assert (
            0.99 < spent.epsilon <= 1
            and spent.releases == fits[-1][2].composed()
            and spent.guarantee_holds is not None
        )


@pytest.mark.slow
@pytest.mark.parametrize("solver", ["vips", "dpvi", "na-dpvi"])
def test_the_fit_follows_from_the_releases_and_the_solver_key(solver, fits, compiled_as_users_do):
    """So nothing else of the documents is in it: no start, no stopping, no bound of the likelihood."""
    model = estimator(solver=solver).fit(X)
    releases = fits[-1][-1]
    again = estimator(solver=solver)
    again.n_features_in_ = V
    plan, solver_keys = again.plan(N, V), fit_keys(0).solver
    nothing = {"columns": np.full(LONGEST, V, np.int32), "values": np.zeros(LONGEST, np.float32)}
    state = jax.device_get(
        inference.replay(releases, solver_keys, plan.model, plan.solver, plan.spec, nothing)
    )
    again._adopt(plan, Outcome(state, draws_rng(solver_keys), model.usable_records_))
    assert_replayed(model, again, without=())
