"""Who has an affair? A private Bayesian answer from a survey, in one picture.

``make demo`` runs this. It fits logistic regression to 6366 answers on extramarital affairs with
differential privacy, prints the accuracy and calibration of its probabilities on women that it has
not seen, and draws ``demo.png``. ``--data adult`` takes the UCI Adult table instead.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.lines import Line2D
from matplotlib.ticker import NullFormatter
from sklearn.compose import ColumnTransformer
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import accuracy_score, log_loss, roc_auc_score
from sklearn.pipeline import Pipeline

from skdpbayes import DPBayesianLogisticRegression
from skdpbayes.datasets import adult_preprocessor, fair_preprocessor, load_adult, load_fair

DELTA = 1e-5
DARK, BLUE, ORANGE, GREY = "#222222", "#1f6fb2", "#d1603d", "#9a9a9a"


@dataclass(frozen=True)
class Task:
    """A table with its public facts: labels, bound on rows, preparation.

    The second label is the event. `effects` are the combinations of coefficients to show: a name,
    and the weight of each prepared column; `remark` names the baseline. `about` describes a person
    by the raw columns.
    """

    title: str
    event: str
    people: str
    about: str
    X_train: Any
    y_train: Any
    X_test: Any
    y_test: Any
    classes: list[str]
    preprocessor: ColumnTransformer
    data_norm: float
    effects: tuple[tuple[str, dict[str, float]], ...]
    remark: str
    solver: str


def fair() -> Task:
    """Return answers to a survey on extramarital affairs, with their public schema."""
    data = load_fair()
    # The preparation scales each column from its bounds to [-1, 1].
    steps = {name: 2 / (upper - lower) for name, (lower, upper) in data.bounds.items()}
    effects = [
        (label, {column: step * steps[column]})
        for label, column, step in (
            ("marriage rated 1 point better", "rate_marriage", 1),
            ("1 step more religious", "religious", 1),
            ("10 years longer married", "yrs_married", 10),
            ("10 years older", "age", 10),
            ("1 child more", "children", 1),
            ("4 years more of school", "educ", 4),
        )
    ]
    effects += [
        (f"{whose} work: {job}", {f"{column}_{job}": 1.0})
        for whose, column in (("her", "occupation"), ("his", "occupation_husb"))
        for job in data.categories[column]
        if job != "white-collar"
    ]
    return Task(
        "Affairs (Redbook survey, 1974)", "an affair", "women",
        "age {age:g}, married {yrs_married:g} years, children {children:g}, "
        "rates her marriage {rate_marriage:g} of 5, religious {religious:g} of 4",
        data.X_train, data.y_train, data.X_test, data.y_test, data.classes,
        fair_preprocessor(), data.data_norm, tuple(effects), " (work: beside white-collar)",
        "na-dpvi",  # narrower intervals of coefficients
    )  # fmt: skip


def adult() -> Task:
    """UCI Adult with its public schema, downloaded or read from a folder."""
    data = load_adult()
    widths = {name: upper - lower for name, (lower, upper) in data.bounds.items()}
    effects = [
        (label, {column: step / widths[column]})
        for label, column, step in (
            ("10 years older", "age", 10),
            ("10 hours a week more", "hours-per-week", 10),
            ("capital gain: $5,000 more", "capital-gain", 5_000),
            ("capital loss: $1,000 more", "capital-loss", 1_000),
        )
    ]
    effects += [
        (f"{high} rather than {low}", {f"{column}_{high}": 1.0, f"{column}_{low}": -1.0})
        for column, high, low in (
            ("marital-status", "Married-civ-spouse", "Never-married"),
            ("marital-status", "Divorced", "Never-married"),
            ("education", "Doctorate", "HS-grad"),
            ("education", "Bachelors", "HS-grad"),
            ("education", "11th", "HS-grad"),
            ("occupation", "Exec-managerial", "Sales"),
            ("occupation", "Other-service", "Sales"),
            ("workclass", "Federal-gov", "Private"),
            ("workclass", "Self-emp-not-inc", "Private"),
            ("sex", "Female", "Male"),
        )
    ]
    return Task(
        "UCI Adult (1994 census)", "income above $50,000", "people",
        "age {age}, {education}, {occupation}, {marital-status}, {hours-per-week} hours a week",
        data.X_train, data.y_train, data.X_test, data.y_test, data.classes,
        adult_preprocessor(), data.data_norm, tuple(effects), "",
        "dpvi",  # the default: na-dpvi holds back the large coefficient of capital gains
    )  # fmt: skip


TASKS = {"fair": fair, "adult": adult}


def bins(event: np.ndarray, probability: np.ndarray, n_bins: int = 10) -> np.ndarray:
    """Mean prediction, observed share and number of people, in bins of equal size."""
    parts = np.array_split(np.argsort(probability, kind="stable"), n_bins)
    return np.array([(probability[i].mean(), event[i].mean(), len(i)) for i in parts])


def outcome(task: Task) -> np.ndarray:
    """Whether the event happened to each person of the test split."""
    return (np.asarray(task.y_test) == task.classes[1]).astype(float)


def event_column(task: Task, model: Any) -> int:
    """Column of the event in what `predict_proba` returns."""
    return list(model.classes_).index(task.classes[1])


def event_probability(task: Task, model: Any, X: Any) -> np.ndarray:
    """Probability of the event."""
    return model.predict_proba(X)[:, event_column(task, model)]


def metrics(task: Task, model: Any) -> dict[str, float]:
    """Compute scores of a classifier on the test split."""
    event, probability = outcome(task), event_probability(task, model, task.X_test)
    predicted, observed, count = bins(event, probability).T
    return {
        "accuracy": accuracy_score(task.y_test, model.predict(task.X_test)),
        "area under the ROC curve": roc_auc_score(event, probability),
        "log-loss": log_loss(event, probability),
        "calibration error": float(np.average(np.abs(predicted - observed), weights=count)),
    }


def odds_ratios(task: Task, model: Pipeline, coefficients: np.ndarray) -> np.ndarray:
    """Odds ratio of each effect, for each row of `coefficients`."""
    columns = list(model[:-1].get_feature_names_out())
    weights = np.array([[effect.get(name, 0.0) for name in columns] for _, effect in task.effects])
    # Coefficients are of the log-odds of the model's second class.
    sign = 1.0 if event_column(task, model) == 1 else -1.0
    return np.exp(sign * np.asarray(coefficients) @ weights.T)


@dataclass(frozen=True)
class Effect:
    """Posterior median and 95% interval of an odds ratio, and the non-private odds ratio."""

    name: str
    median: float
    lower: float
    upper: float
    not_private: float

    @property
    def sure(self) -> bool:
        """Whether the interval determines the sign of the effect."""
        return self.lower > 1 or self.upper < 1


def effects(task: Task, model: Pipeline, reference: Pipeline) -> list[Effect]:
    """List all effects, those that raise the odds most first."""
    draws = odds_ratios(task, model, model[-1].posterior_samples_["coef"][:, 0, :])
    found = zip(
        [name for name, _ in task.effects],
        *np.quantile(draws, [0.5, 0.025, 0.975], axis=0),
        odds_ratios(task, reference, reference[-1].coef_)[0],
        strict=True,
    )
    return sorted((Effect(*values) for values in found), key=lambda effect: -effect.median)


def report(task: Task, model: Pipeline, reference: Pipeline, seconds: float) -> None:
    """Print the figures."""
    private, open_ = metrics(task, model), metrics(task, reference)
    print(f"\nOn {len(task.y_test)} {task.people} that it has not seen:")
    print(f"  {'':26}{'private':>10}{'not private (scikit-learn)':>30}")
    for name, value in private.items():
        print(f"  {name:26}{value:10.3f}{open_[name]:30.3f}")
    print(f"\nTime of the private fit: {seconds:.1f} s")
    print(f"Privacy spent: {model[-1].privacy_spent_}")

    print(f"\nOdds of {task.event} are multiplied by{task.remark}, where the sign is sure:")
    for effect in effects(task, model, reference):
        if effect.sure:
            interval = f"95% credible interval [{effect.lower:.2f}, {effect.upper:.2f}]"
            print(f"  {effect.name:46}{effect.median:6.2f}   {interval}")

    two = task.X_test.iloc[[0, -1]]
    column = event_column(task, model)
    lower, upper = (end[:, column] for end in model[-1].predict_interval(model[:-1].transform(two)))
    probability = event_probability(task, model, two)
    print(f"\nTwo of the {task.people}:")
    for k, (_, person) in enumerate(two.iterrows()):
        print(f"  {task.about.format(**person)}")
        print(
            f"    probability of {task.event}: {probability[k]:.2f}, 95% credible interval "
            f"[{lower[k]:.2f}, {upper[k]:.2f}]; the truth: {task.y_test.iloc[[0, -1]].iloc[k]}"
        )


def draw(task: Task, model: Pipeline, reference: Pipeline, path: str) -> None:
    """Draw the reliability diagram and the odds ratios with their credible intervals."""
    plt.rcParams.update(
        {"font.size": 10.5, "axes.edgecolor": GREY, "axes.labelcolor": DARK, "text.color": DARK}
    )
    figure = plt.figure(figsize=(13.5, 6.4), layout="constrained")
    grid = figure.add_gridspec(2, 2, height_ratios=[4, 1], width_ratios=[1, 1.1], wspace=0.05)
    spots = (grid[0, 0], grid[1, 0], grid[:, 1])
    top, bottom, right = (figure.add_subplot(spot) for spot in spots)
    promise = f"({model[-1].epsilon:g}, {DELTA:g})-differentially private"
    if not model[-1].privacy_spent_.guarantee_holds:
        promise = "seeded, so NOT private"
    figure.suptitle(
        f"{task.title}: Bayesian logistic regression of {len(task.y_train)} {task.people}, "
        f"{promise}",
        fontsize=13, fontweight="bold", x=0.01, ha="left",
    )  # fmt: skip

    event, probability = outcome(task), event_probability(task, model, task.X_test)
    open_ = event_probability(task, reference, task.X_test)
    end = min(1.0, max(probability.max(), open_.max()) + 0.05)
    top.plot([0, end], [0, end], color=GREY, lw=1, ls="--", label="perfectly calibrated")
    predicted, observed, _ = bins(event, open_).T
    top.plot(
        predicted, observed, "D", mfc="white", mec=DARK, ms=6, label="scikit-learn, not private"
    )
    predicted, observed, count = bins(event, probability).T
    top.errorbar(
        predicted, observed, 1.96 * np.sqrt(observed * (1 - observed) / count),
        fmt="o-", color=BLUE, lw=1.6, ms=6, capsize=3, label="private, with 95% sampling error",
    )  # fmt: skip
    top.set(xlim=(0, end), ylim=(0, end), ylabel=f"share with {task.event}")
    top.set_title("Are the probabilities honest?", loc="left", fontsize=12)
    top.legend(frameon=False, loc="upper left")
    top.tick_params(labelbottom=False)
    bottom.hist(probability, bins=np.linspace(0, end, 41), color=BLUE, alpha=0.75)
    bottom.set(xlim=(0, end), xlabel=f"predicted probability of {task.event}", ylabel=task.people)

    rows = effects(task, model, reference)[::-1]
    places = np.arange(len(rows))
    middle, lower, upper, other = np.array(
        [(row.median, row.lower, row.upper, row.not_private) for row in rows]
    ).T
    sure = np.array([row.sure for row in rows])
    colours = np.where(~sure, GREY, np.where(middle > 1, ORANGE, BLUE))
    right.axvline(1, color=GREY, lw=1)
    right.hlines(places, lower, upper, color=colours, lw=3.4, alpha=0.55)
    right.scatter(middle, places, c=colours, s=46, zorder=3)
    right.scatter(other, places, marker="D", fc="white", ec=DARK, s=22, lw=1, zorder=4)
    right.set_yticks(places, [row.name for row in rows])
    right.set_xscale("log")
    ticks = [t for t in (0.1, 0.25, 0.5, 1, 2, 4, 10, 25, 100) if lower.min() < t < upper.max()]
    right.set_xticks(ticks, [f"×{tick:g}" for tick in ticks])
    right.xaxis.set_minor_formatter(NullFormatter())
    right.tick_params(which="minor", length=0)
    right.set(
        xlabel=f"odds of {task.event} are multiplied by{task.remark}", ylim=(-0.7, len(rows) - 0.3)
    )
    right.set_title("What goes with it? (95% credible intervals)", loc="left", fontsize=12)
    right.grid(axis="x", color="#e8e8e8")
    right.set_axisbelow(True)
    keys = [
        Line2D([], [], color=ORANGE, marker="o", lw=3.4, label="raises the odds"),
        Line2D([], [], color=BLUE, marker="o", lw=3.4, label="lowers them"),
        Line2D([], [], color=GREY, marker="o", lw=3.4, label="sign unclear"),
        Line2D(
            [],
            [],
            color=DARK,
            marker="D",
            mfc="white",
            ms=5,
            lw=0,
            label="scikit-learn, not private",
        ),
    ]
    figure.legend(handles=keys, frameon=False, loc="outside lower right", ncols=4)
    for axes in (top, bottom, right):
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=150)
    plt.close(figure)


def main(arguments: list[str] | None = None) -> None:
    """Fit, report, draw."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--data", choices=list(TASKS), default="fair",
        help="table; adult is downloaded, all else needs no network (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument("--epsilon", type=float, default=1.0, help="budget (default: %(default)s)")
    parser.add_argument("--output", default="demo.png", help="picture (default: %(default)s)")
    parser.add_argument(
        "--random-state", type=int, default=None, metavar="SEED",
        help="seed for reproducible figures; the fit is then not private, as its report says",
    )  # fmt: skip
    options = parser.parse_args(arguments)

    task = TASKS[options.data]()
    print(
        f"{task.title}: {len(task.y_train)} {task.people} to learn from, {len(task.y_test)} to "
        "test on."
    )
    print(f"Fitting with epsilon={options.epsilon:g}, delta={DELTA:g} ...", flush=True)
    private = DPBayesianLogisticRegression(
        epsilon=options.epsilon,
        delta=DELTA,
        classes=task.classes,
        data_norm=task.data_norm,
        solver=task.solver,
        random_state=options.random_state,
    )
    model = Pipeline([("prepare", task.preprocessor), ("classify", private)])
    start = time.perf_counter()
    model.fit(task.X_train, task.y_train)
    seconds = time.perf_counter() - start
    # The fit without privacy shows the cost of privacy.
    reference = Pipeline(
        [("prepare", task.preprocessor), ("classify", LogisticRegression(max_iter=1000))]
    )
    reference.fit(task.X_train, task.y_train)

    report(task, model, reference, seconds)
    draw(task, model, reference, options.output)
    print(f"\nPicture: {options.output}")


if __name__ == "__main__":
    main()
