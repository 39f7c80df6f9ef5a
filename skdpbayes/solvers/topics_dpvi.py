"""Variational inference for topics, with releases at draws of the guide.

Black-box variational inference on private gradients (Jalko, Dikmen and Honkela 2017), for models
whose guide is over counts. The gradient of a document's bound in the logarithms of the topics, at
its local optimum, is its expected counts, by the envelope theorem. Round t draws topics from the
guide, releases the summed expected counts there, and takes a natural-gradient step (Hoffman, Blei,
Wang and Paisley 2013, equation 26) on the bound

    E_q[sum_i log p(x_i | topics)] - KL(q || prior):
    theta_t ~ q_t,    r_t = sum_i E[counts of x_i | theta_t] + noise,
    s_{t+1} = (1 - w_t) s_t + w_t r_t,    q_{t+1} = guide(s_{t+1}).

The guide is the law of Dirichlet topics whose counts are known up to the noise in s
(`skdpbayes.posteriors.topics`), so it includes the privacy noise.

Where we differ:

* Steps are natural gradients with the fluctuation of ``d log(theta) / d s`` replaced by its mean
  (1 over the Fisher information): under privacy its variance would multiply the noise.
* The guide is not normal: normal guides on logits give words that cannot be learnt too much mass.

See ``docs/solvers/topics-gradients.md``.
"""

from __future__ import annotations

from dataclasses import dataclass

import jax

from skdpbayes.models.base import TopicModel
from skdpbayes.models.protocols import Params
from skdpbayes.pytrees import pytree
from skdpbayes.solvers.vips_rounds import StatisticsRounds, StatisticsState


@pytree
@dataclass(frozen=True)
class TopicsDPVI(StatisticsRounds):
    """Rounds of expected counts at draws of the guide, after the model's openings."""

    def _point(self, model: TopicModel, state: StatisticsState, key: jax.Array) -> Params:
        """A draw of the guide."""
        return model.drawn_topics(state.params, key)
