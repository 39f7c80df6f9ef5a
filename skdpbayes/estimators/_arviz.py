"""Posterior draws for ArviZ."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_is_fitted

from skdpbayes._version import __version__
from skdpbayes.privacy import PrivacySpent

DEALT = 4  # chains that independent draws are dealt to: ArviZ warns of one chain


class ArvizMixin:
    """Conversion of `posterior_samples_` for ArviZ, with names of columns and classes."""

    privacy_spent_: PrivacySpent
    posterior_samples_: Any
    _fitted: tuple[str, ...]
    _chains = 0
    _draws_name = "parameters"  # of draws in a single array
    _dims: ClassVar[dict[str, tuple[str, ...]]] = {}

    @available_if(lambda self: self._has_draws)
    def to_arviz(
        self,
        coords: Mapping[str, Sequence[Any]] | None = None,
        dims: Mapping[str, Sequence[str]] | None = None,
    ) -> Any:
        """Posterior draws for ArviZ.

        Markov chain draws keep their chains and their order, so that ArviZ computes R-hat and
        effective sample size from the chains. Independent draws are dealt to four chains, since
        ArviZ wants several, and up to three are left out: their R-hat is 1 whatever the fit is
        like. Draws of more chains than each has draws are dealt to four, too; then diagnostics
        mean little.
        Columns and classes keep their names. The result holds no rows and no log-likelihoods of
        rows, since these would not be private.

        Parameters
        ----------
        coords : mapping of str to sequence, default=None
            Names along a dimension, such as ``{"covariate": ["age", "dose"]}``, as ArviZ takes
            them; beside those of columns ("feature"), classes ("class") and the like, or in their
            place.
        dims : mapping of str to sequence of str, default=None
            Names of a variable's axes after chain and draw, such as ``{"w": ["covariate"]}``, in
            place of the estimator's own.

        Returns
        -------
        data : arviz.InferenceData, or xarray.DataTree with ArviZ 1.0 or newer

        Raises
        ------
        ImportError
            If ArviZ is not installed.
        ValueError
            If `dims` names a variable or `coords` a dimension that the draws do not have.
        """
        check_is_fitted(self)
        try:
            import arviz  # type: ignore[import-not-found, unused-ignore]
        except ImportError as error:
            raise ImportError("to_arviz needs ArviZ: pip install skdpbayes[arviz].") from error
        posterior = {
            name: _in_chains(np.asarray(values), self._chains)
            for name, values in self._named_draws().items()
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
        axes, along = self._axes_and_labels(posterior, coords, dims)
        labels: dict[str, Any] = {"dims": axes, "coords": along}
        if hasattr(arviz, "InferenceData"):
            return arviz.from_dict(posterior=posterior, posterior_attrs=attributes, **labels)
        return arviz.from_dict({"posterior": posterior}, attrs={"posterior": attributes}, **labels)

    def _axes_and_labels(
        self,
        variables: Mapping[str, Any],
        coords: Mapping[str, Sequence[Any]] | None,
        dims: Mapping[str, Sequence[str]] | None,
        names: Sequence[str] | None = None,
    ) -> tuple[dict[str, list[str]], dict[str, Any]]:
        """Names of the axes of variables, and the labels along each; `names` are of columns."""
        _refuse_unknown("dims", dims, variables)
        named_axes = {**self._dimensions(), **(dims or {})}
        axes = {name: list(own) for name, own in named_axes.items() if name in variables}
        used = {dim for own in axes.values() for dim in own}
        _refuse_unknown("coords", coords, used)
        # A plate of a NumPyro model may be called "feature", and is of no columns.
        known = {dim for own in {**self._dims, **(dims or {})}.values() for dim in own}
        own = {dim: x for dim, x in self._coordinates(names).items() if dim in known & used}
        return axes, {**own, **(coords or {})}

    def _dimensions(self) -> Mapping[str, tuple[str, ...]]:
        """Names of the axes of each variable after the first, the axis of draws."""
        return self._dims

    @property
    def _has_draws(self) -> bool:
        return (
            hasattr(type(self), "posterior_samples_") or "posterior_samples_" in type(self)._fitted
        )

    def _named_draws(self) -> dict[str, np.ndarray]:
        """Draws of each variable."""
        draws = self.posterior_samples_
        return draws if isinstance(draws, dict) else {self._draws_name: draws}

    def _feature_names(self) -> Sequence[str] | None:
        """Names of the columns, if they are known."""
        return None

    def _coordinates(self, names: Sequence[str] | None = None) -> dict[str, Any]:
        """Coordinates of the named axes; `names` are those of the columns."""
        own, found = vars(self), {}
        if "n_features_in_" in own:
            known = self._feature_names() if names is None else names
            columns = np.arange(own["n_features_in_"]) if known is None else np.asarray(known)
            found["feature"] = found["other_feature"] = columns
        elif names is not None:  # fitted to arguments by name
            found["feature"] = np.asarray(names)
        if "classes_" in own:
            classes = own["classes_"]
            found["class"] = classes[1:] if len(classes) == 2 else classes
        for name, attribute in (("category", "categories_"), ("group", "groups_")):
            if attribute in own:
                found[name] = own[attribute]
        return found


def names_columns(dims: Mapping[str, Sequence[str]] | None) -> bool:
    """Whether axes that a user names are those of columns."""
    return any("feature" in axes for axes in (dims or {}).values())


def _refuse_unknown(name: str, given: Mapping[str, Any] | None, known: Iterable[str]) -> None:
    unknown = sorted(set(given or {}) - set(known))
    if unknown:
        raise ValueError(f"{name} has {unknown}, but the draws have {sorted(known)}.")


def _in_chains(draws: np.ndarray, chains: int) -> np.ndarray:
    """From (draws, ...), chains side by side, to (chains, draws, ...); 0: no Markov chains."""
    if chains == 0 or chains**2 > len(draws):
        chains = max(min(DEALT, len(draws) // DEALT), 1)
    n = len(draws) // chains
    return np.moveaxis(draws[: n * chains].reshape(n, chains, *draws.shape[1:]), 1, 0)
