"""Tables of posteriors: estimates, intervals, and the share of the privacy noise."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_is_fitted

from skdpbayes.checks import check_number
from skdpbayes.estimators._arviz import ArvizMixin

if TYPE_CHECKING:
    import pandas as pd
    from numpy.typing import ArrayLike


class Parameter(NamedTuple):
    """One row of a summary.

    Attributes
    ----------
    variable : str
        Name in `posterior_samples_`.
    labels : tuple of str
        Labels on the axes of the variable.
    draws : array of shape (n_draws,)
    estimate : float
    quiet : float
        Standard deviation without privacy noise; NaN if it is not known.
    linear : bool
        Whether it is a coefficient of a column, or the intercept.
    """

    variable: str
    labels: tuple[str, ...]
    draws: np.ndarray
    estimate: float
    quiet: float
    linear: bool


def _says_something(estimator: SummaryMixin) -> bool:
    if estimator._opaque:
        raise AttributeError(
            "Single weights of a network have no meaning: look at its predictions, or at "
            "posterior_samples_."
        )
    return True


class SummaryMixin(ArvizMixin):
    """Summary of `posterior_samples_`, with names of columns and classes."""

    _opaque: ClassVar[bool] = False  # whether single parameters mean nothing
    # Whether "coef" and "intercept" are those of a linear predictor of the columns.
    _linear: ClassVar[bool] = False
    # Variables whose exponentials are odds ratios, with two classes.
    _log_odds: ClassVar[tuple[str, ...]] = ()
    # Variables whose posterior means are attributes: that of "coef" is `coef_`.
    _estimated: ClassVar[tuple[str, ...]] = ()
    # Variables that cannot be negative, so that their sign says nothing.
    _positive: ClassVar[tuple[str, ...]] = ()

    def _summary_draws(self) -> dict[str, np.ndarray]:
        """Draws of the variables of a summary, by name."""
        return self._named_draws()

    def _quiet_std(self) -> dict[str, np.ndarray]:
        """Standard deviations without privacy noise, of the variables where they are known."""
        return vars(self).get("_quiet", {})

    @available_if(_says_something)
    def summary(
        self,
        level: float = 0.9,
        *,
        feature_names: Sequence[str] | None = None,
        scaling: tuple[ArrayLike, ArrayLike] | None = None,
        coords: Mapping[str, Sequence[Any]] | None = None,
        dims: Mapping[str, Sequence[str]] | None = None,
        linear: tuple[str, str] | None = None,
        exponentiate: bool = False,
    ) -> pd.DataFrame:
        """Table of the posterior, with a row for each parameter.

        It reads releases alone and costs no budget.

        Parameters
        ----------
        level : float, default=0.9
            Mass of the equal-tailed intervals, in (0, 1).
        feature_names : sequence of str, default=None
            Names of the columns that the estimator was fitted to, such as the
            ``get_feature_names_out()`` of the steps before it. None: those of the data frame or
            the schema, else x0, x1 and so on.
        scaling : tuple (slopes, offsets) of arrays, default=None
            For regressions that were fitted to ``slopes * columns + offsets``: coefficients and
            intercept are those of the columns. None: of what the estimator was fitted to.
        coords, dims : mappings, default=None
            As in `to_arviz`. ``dims={"weights": ["feature"]}`` gives the sites of a NumPyro model
            the names of the columns.
        linear : tuple of str, default=None
            The sites of a NumPyro model that are coefficients of its columns, and the intercept
            beside them: ``("weights", "intercept")``. They get the names of columns, and
            `scaling` converts them.
        exponentiate : bool, default=False
            Whether estimates and ends of intervals of coefficients and intercept are exponentials:
            odds ratios of logistic regression (two classes), also of groups, and rate ratios where
            `linear` names sites that the logarithm of a mean is linear in. Other parameters stay as
            they are. The corner of the table says whose odds they are.

        Returns
        -------
        table : pandas.DataFrame
            Its columns are

            - ``estimate``, the posterior mean, or its exponential;
            - ``sd``, the posterior standard deviation, which includes privacy noise as far as the
              solver does (never of exponentials);
            - the ends of the interval, such as ``5%`` and ``95%``;
            - ``p_direction``, the probability that the parameter has the sign of its posterior
              median; NaN for probabilities, rates, weights and standard deviations, which cannot be
              negative (but not for sites of a NumPyro model, whose sign is not known beforehand);
            - ``noise_share``, the part of `sd` that is privacy noise: the posterior without it
              would have the standard deviation ``(1 - noise_share) * sd``. It is known with
              "na-dpvi" (of the scores, not of the curvature: privacy costs more) and for
              `DPBetaBernoulli`, `DPDirichletCategorical` and `DPGammaExponential` with "vips", and
              NaN elsewhere.

            All but `estimate` and `noise_share` are computed from `posterior_samples_`.

        Raises
        ------
        ImportError
            If pandas is not installed.
        ValueError
            For a `level` outside (0, 1), for names that are not as many as columns, for `scaling`
            where there are no coefficients of columns, where no parameter has a posterior, and
            as `to_arviz` does for `coords` and `dims`.
        """
        check_is_fitted(self)
        check_number("level", level, 0, 1, open_above=True)
        try:
            import pandas as pd
        except ImportError as error:
            raise ImportError("summary needs pandas: pip install pandas.") from error
        parameters = list(self._parameters_of(feature_names, scaling, coords, dims, linear))
        if not parameters:
            raise ValueError(
                "summary is of parameters with a posterior, and all of these are points: `params_`."
            )
        draws = np.stack([own.draws for own in parameters])
        sd = draws.std(axis=1)
        tails = (1 - level) / 2, (1 + level) / 2
        ends = np.quantile(draws, tails, axis=1)
        direction = np.maximum(np.mean(draws > 0, axis=1), np.mean(draws < 0, axis=1))
        direction[[own.variable in self._positive for own in parameters]] = np.nan
        quiet = np.array([own.quiet for own in parameters])
        estimates = np.array([own.estimate for own in parameters])
        classes = vars(self).get("classes_", ())
        if exponentiate:
            odds = self._log_odds if len(classes) == 2 else ()
            of_columns = np.array(
                [own.variable in odds or (own.linear and linear is not None) for own in parameters]
            )
            if not of_columns.any():
                raise ValueError(
                    "exponentiate is for logistic regression of two classes, and for the sites of "
                    "a NumPyro model that linear=(coefficients, intercept) names."
                )
            with np.errstate(over="ignore"):  # far from zero a ratio may be infinite
                estimates[of_columns] = np.exp(estimates[of_columns])
                ends[:, of_columns] = np.exp(ends[:, of_columns])
        # Moments of draws have Monte Carlo errors: a share is not negative.
        share = np.clip(1 - quiet / np.where(sd > 0, sd, 1), 0, 1)
        table = {
            "estimate": estimates,
            "sd": sd,
            **{f"{100 * tail:.10g}%": end for tail, end in zip(tails, ends, strict=True)},
            "p_direction": direction,
            "noise_share": share,
        }
        found = pd.DataFrame(table, index=pd.Index(self._row_names(parameters), name="parameter"))
        if exponentiate and len(classes) == 2:
            found.columns.name = f"odds of {classes[1]}"
        return found

    def _parameters_of(
        self,
        feature_names: Sequence[str] | None,
        scaling: tuple[ArrayLike, ArrayLike] | None,
        coords: Mapping[str, Sequence[Any]] | None,
        dims: Mapping[str, Sequence[str]] | None,
        linear: tuple[str, str] | None,
    ) -> Iterator[Parameter]:
        """Parameters of a summary."""
        all_draws, quiet = self._summary_draws(), self._quiet_std()
        sites = self._linear_sites(all_draws, linear)
        if linear is not None:
            dims = {linear[0]: ["feature"], **(dims or {})}
        n_columns = self._n_columns(all_draws, dims)
        axes, coordinates = self._axes_and_labels(
            all_draws, coords, dims, self._columns(feature_names, dims, n_columns)
        )
        means = {name: vars(self)[f"{name}_"] for name in self._estimated}
        if scaling is not None:
            if sites is None:
                raise ValueError(
                    f"{type(self).__name__} has no coefficients of columns, which `scaling` "
                    "converts (sites of a NumPyro model are named by `linear`)."
                )
            slopes, offsets = self._checked(scaling, n_columns)
            coef, intercept = sites
            all_draws = _of_columns(all_draws, sites, slopes, offsets)
            if means:
                means = _of_columns(means, sites, slopes, offsets)
            # The intercept's would need a covariance.
            quiet = {name: std for name, std in quiet.items() if name != intercept}
            if coef in quiet:
                quiet[coef] = quiet[coef] * np.abs(slopes)
        for name, draws in all_draws.items():
            draws = np.asarray(draws, np.float64)
            shape = draws.shape[1:]
            estimates = np.reshape(means.get(name, draws.mean(axis=0)), shape)
            without = np.reshape(quiet.get(name, np.full(shape, np.nan)), shape)
            labels = _axes(name, shape, axes.get(name, ()), coordinates)
            for place in np.ndindex(*shape):
                own = tuple(axis[i] for axis, i in zip(labels, place, strict=True) if axis)
                yield Parameter(
                    name,
                    own,
                    draws[(slice(None), *place)],
                    float(estimates[place]),
                    float(without[place]),
                    sites is not None and name in sites,
                )

    def _linear_sites(
        self, draws: Mapping[str, Any], linear: tuple[str, str] | None
    ) -> tuple[str, str] | None:
        """Names of the coefficients of the columns and of the intercept; None: there are none."""
        if linear is None:
            return ("coef", "intercept") if self._linear else None
        coef, intercept = linear
        shapes = {name: np.shape(own)[1:] for name, own in draws.items()}
        known = vars(self).get("n_features_in_")  # not of arguments by name
        expected = shapes.get(coef, ()) if known is None else (known,)
        if len(expected) != 1 or (shapes.get(coef), shapes.get(intercept)) != (expected, ()):
            raise ValueError(
                f"linear={linear!r} must name a site with an entry for each column, and one with "
                f"a single number: sites have the shapes {shapes}."
            )
        return coef, intercept

    def _checked(
        self, scaling: tuple[ArrayLike, ArrayLike], n_columns: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """Slopes and offsets as arrays."""
        slopes, offsets = (np.asarray(own, np.float64) for own in scaling)
        shape = (n_columns,)
        if slopes.shape != shape or offsets.shape != shape:
            raise ValueError(
                f"scaling must be a pair of arrays of shape {shape}, got shapes {slopes.shape} and "
                f"{offsets.shape}."
            )
        return slopes, offsets

    def _n_columns(self, draws: Mapping[str, Any], dims: Mapping[str, Sequence[str]] | None) -> int:
        """Number of columns; of arguments by name, that of an axis which is of columns."""
        sizes = (
            np.shape(draws[name])[1 + list(own).index("feature")]
            for name, own in (dims or {}).items()
            if name in draws and "feature" in own
        )
        n: int = vars(self).get("n_features_in_", next(sizes, 0))
        return n

    def _columns(
        self, feature_names: Sequence[str] | None, dims: Mapping[str, Sequence[str]] | None, n: int
    ) -> Sequence[str]:
        """Names of the columns; those without are x0, x1 and so on."""
        names: Any = self._feature_names() if feature_names is None else feature_names
        if names is None:
            names = [f"x{j}" for j in range(n)]
        if len(names) != n:
            raise ValueError(f"feature_names has {len(names)} names for {n} columns.")
        own: Sequence[str] = names
        return own

    def _row_names(self, parameters: Sequence[Parameter]) -> list[str]:
        """Names of the rows, all different."""
        main = ("coef", self._draws_name)
        full = [f"{own.variable}[{', '.join(own.labels)}]" for own in parameters]
        full = [name.removesuffix("[]") for name in full]
        short = [
            own.labels[0] if own.variable in main and len(own.labels) == 1 else name
            for own, name in zip(parameters, full, strict=True)
        ]
        return short if len(set(short)) == len(short) else full


def _of_columns(
    values: Mapping[str, Any], sites: tuple[str, str], slopes: np.ndarray, offsets: np.ndarray
) -> dict[str, Any]:
    """Coefficients of columns, given those of ``slopes * columns + offsets``."""
    name, level = sites
    coef = values[name]
    return {**values, name: coef * slopes, level: values[level] + coef @ offsets}


def _axes(
    name: str, shape: tuple[int, ...], dims: Sequence[str], coordinates: Mapping[str, Any]
) -> list[list[str]]:
    """Labels on each axis; none on the axis of a class that is the only one."""
    out = []
    for i, size in enumerate(shape):
        dim = dims[i] if i < len(dims) else ""
        labels = [str(label) for label in coordinates.get(dim, range(size))]
        if len(labels) != size:
            raise ValueError(f"{dim!r} has {len(labels)} names, but {name!r} {size} of them.")
        out.append([] if dim == "class" and size == 1 else labels)
    return out
