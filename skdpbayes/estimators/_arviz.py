"""Posterior draws for ArviZ."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_is_fitted

from skdpbayes._version import __version__
from skdpbayes.privacy import PrivacySpent


class ArvizMixin:
    """Conversion of `posterior_samples_` for ArviZ, with names of columns and classes."""

    privacy_spent_: PrivacySpent
    posterior_samples_: Any
    _fitted: tuple[str, ...]
    _chains = 1
    _draws_name = "parameters"  # of draws in a single array
    # Names of the axes of each variable after the first, the axis of draws.
    _dims: ClassVar[dict[str, tuple[str, ...]]] = {}

    @available_if(lambda self: self._has_draws)
    def to_arviz(self) -> Any:
        """Posterior draws for ArviZ.

        Markov chain draws keep their chains and their order, so that ArviZ computes R-hat and
        effective sample size from the chains; other draws are one chain of independent draws.
        Columns and classes keep their names. The result holds no rows and no log-likelihoods of
        rows, since these would not be private.

        Returns
        -------
        data : arviz.InferenceData, or xarray.DataTree with ArviZ 1.0 or newer

        Raises
        ------
        ImportError
            If ArviZ is not installed.
        """
        check_is_fitted(self)
        try:
            import arviz  # type: ignore[import-not-found, unused-ignore]
        except ImportError as error:
            raise ImportError("to_arviz needs ArviZ: pip install skdpbayes[arviz].") from error
        draws = self.posterior_samples_
        named = draws if isinstance(draws, dict) else {self._draws_name: draws}
        posterior = {
            name: _in_chains(np.asarray(values), self._chains) for name, values in named.items()
        }
        spent = self.privacy_spent_
        attributes = {
            "inference_library": "skdpbayes",
            "inference_library_version": __version__,
            "model": type(self).__name__,
            "epsilon": float(spent.epsilon),
            "delta": float(spent.delta),
            "guarantee_holds": int(spent.guarantee_holds),
        }
        dims = {name: list(own) for name, own in self._dims.items() if name in posterior}
        used = {dim for own in dims.values() for dim in own}
        labels: dict[str, Any] = {
            "dims": dims,
            "coords": {dim: x for dim, x in self._coordinates().items() if dim in used},
        }
        if hasattr(arviz, "InferenceData"):
            return arviz.from_dict(posterior=posterior, posterior_attrs=attributes, **labels)
        return arviz.from_dict({"posterior": posterior}, attrs={"posterior": attributes}, **labels)

    @property
    def _has_draws(self) -> bool:
        return (
            hasattr(type(self), "posterior_samples_") or "posterior_samples_" in type(self)._fitted
        )

    def _coordinates(self) -> dict[str, Any]:
        """Coordinates of the named axes."""
        own, found = vars(self), {}
        if "n_features_in_" in own:
            names = own.get("feature_names_in_", np.arange(own["n_features_in_"]))
            found["feature"] = found["other_feature"] = names
        if "classes_" in own:
            classes = own["classes_"]
            found["class"] = classes[1:] if len(classes) == 2 else classes
        for name, attribute in (("category", "categories_"), ("group", "groups_")):
            if attribute in own:
                found[name] = own[attribute]
        return found


def _in_chains(draws: np.ndarray, chains: int) -> np.ndarray:
    """From (draws, ...), chains side by side, to (chains, draws, ...)."""
    n = len(draws) // chains
    return np.moveaxis(draws[: n * chains].reshape(n, chains, *draws.shape[1:]), 1, 0)
