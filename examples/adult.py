"""Who earns more than 50,000 dollars? A private Bayesian answer from census data, in one picture.

``make demo`` runs this. It fits logistic regression to the UCI Adult table with differential privacy, prints
how good and how honest the probabilities are on people that it has not seen, and draws ``demo.png``.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from sklearn.compose import ColumnTransformer
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import accuracy_score, log_loss, roc_auc_score
from sklearn.pipeline import Pipeline

from skdpbayes import DPBayesianLogisticRegression
from skdpbayes.datasets import adult_preprocessor, load_adult
from skdpbayes.preprocessing import BoundedScaler

DELTA = 1e-5
DARK, BLUE, ORANGE, GREY = "#222222", "#1f6fb2", "#d1603d", "#9a9a9a"

# Upper ends of the columns that the documentation of scikit-learn's breast-cancer table prints; the lower
# ones are 0.
BREAST_CANCER_UPPER = (
    28.11, 39.28, 188.5, 2501.0, 0.163, 0.345, 0.427, 0.201, 0.304, 0.097,
    2.873, 4.885, 21.98, 542.2, 0.031, 0.135, 0.396, 0.053, 0.079, 0.03,
    36.04, 49.54, 251.2, 4254.0, 0.223, 1.058, 1.252, 0.291, 0.664, 0.208,
)  # fmt: skip


@dataclass(frozen=True)
class Task:
    """A table with what is public about it: labels (the second is asked for), bound on rows, preparation.

    `effects` are what to show of the coefficients: a name, and the weight of each prepared column in it.
    Levels of one category mean something beside each other only, so theirs are differences. When empty, every
    column is shown.
    """

    title: str
    event: str
    X_train: Any
    y_train: Any
    X_test: Any
    y_test: Any
    classes: list[str]
    preprocessor: ColumnTransformer
    data_norm: float
    effects: tuple[tuple[str, dict[str, float]], ...] = ()


def adult() -> Task:
    """UCI Adult with its public schema."""
    data = load_adult()
    widths = {name: upper - lower for name, (lower, upper) in data.bounds.items()}
    effects = [
        (label, {column: step / widths[column]})
        for label, column, step in (
            ("ten years older", "age", 10),
            ("ten hours a week more", "hours-per-week", 10),
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
        "UCI Adult (1994 census)", "income above $50,000",
        data.X_train, data.y_train, data.X_test, data.y_test, data.classes,
        adult_preprocessor(), data.data_norm, tuple(effects),
    )  # fmt: skip


def breast_cancer() -> Task:
    """Return a small table that scikit-learn brings along, for machines that cannot get Adult."""
    from sklearn.datasets import load_breast_cancer
    from sklearn.model_selection import train_test_split

    data = load_breast_cancer(as_frame=True)
    labels = data.target.map({0: "malignant", 1: "benign"})
    parts = train_test_split(data.data, labels, test_size=0.3, stratify=labels, random_state=0)
    X_train, X_test, y_train, y_test = parts
    scale = BoundedScaler((0.0, BREAST_CANCER_UPPER))
    columns = ColumnTransformer([("scale", scale, list(data.data.columns))], verbose_feature_names_out=False)
    return Task(
        "breast-cancer table",
        "benign",
        X_train,
        y_train,
        X_test,
        y_test,
        ["malignant", "benign"],
        columns,
        3.0,
    )


def load() -> Task:
    """Adult where it can be had; else say why and take the smaller table."""
    try:
        return adult()
    except OSError as error:
        print(f"Adult is not to be had here: {error}\nGoing on with scikit-learn's breast-cancer table.\n")
        return breast_cancer()


def bins(event: np.ndarray, probability: np.ndarray, n_bins: int = 10) -> np.ndarray:
    """Mean prediction, observed share and number of people in bins of equal width, where there are any."""
    bin_of = np.minimum((probability * n_bins).astype(int), n_bins - 1)
    inside = [bin_of == k for k in np.unique(bin_of)]
    return np.array([(probability[i].mean(), event[i].mean(), i.sum()) for i in inside])


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
    """Compute what a reader wants to know of a classifier, on the test split."""
    event, probability = outcome(task), event_probability(task, model, task.X_test)
    predicted, observed, count = bins(event, probability).T
    return {
        "accuracy": accuracy_score(task.y_test, model.predict(task.X_test)),
        "area under the ROC curve": roc_auc_score(event, probability),
        "log-loss": log_loss(event, probability),
        "calibration error": float(np.average(np.abs(predicted - observed), weights=count)),
    }


def coefficients(task: Task, model: Pipeline) -> list[tuple[str, float, float, float]]:
    """Name, posterior mean and 95% credible interval of each effect on the log-odds, the largest first."""
    columns = list(model[:-1].get_feature_names_out())
    effects = task.effects or tuple((name, {name: 1.0}) for name in columns)
    weights = np.array([[effect.get(name, 0.0) for name in columns] for _, effect in effects])
    # The draws are of the log-odds of the model's second class.
    sign = 1.0 if event_column(task, model) == 1 else -1.0
    draws = sign * np.asarray(model[-1].posterior_samples_["coef"])[:, 0, :] @ weights.T
    lower, upper = np.quantile(draws, [0.025, 0.975], axis=0)
    rows = zip([label for label, _ in effects], draws.mean(axis=0), lower, upper, strict=True)
    return sorted(rows, key=lambda row: -abs(row[1]))


def report(task: Task, model: Pipeline, reference: Pipeline, seconds: float) -> None:
    """Print the figures."""
    private, open_ = metrics(task, model), metrics(task, reference)
    print(f"\nOn {len(task.y_test)} people that it has not seen:")
    print(f"  {'':26}{'private':>10}{'not private (scikit-learn)':>30}")
    for name, value in private.items():
        print(f"  {name:26}{value:10.3f}{open_[name]:30.3f}")
    print(f"\nTime of the private fit: {seconds:.1f} s")
    print(f"Privacy spent: {model[-1].privacy_spent_}")

    print("\nLargest effects on the log-odds, with 95% credible intervals:")
    for name, mean, lower, upper in coefficients(task, model)[:6]:
        print(f"  {name:44}{mean:+7.2f}   [{lower:+.2f}, {upper:+.2f}]")

    person = task.X_test.iloc[[0]]
    shown = list(person.columns)[:2] + list(person.columns)[3:7] if "fnlwgt" in person else list(person.columns)[:4]
    column = event_column(task, model)
    lower, upper = (end[0, column] for end in model[-1].predict_interval(model[:-1].transform(person)))
    print("\nOne of them: " + ", ".join(f"{name} {person[name].iloc[0]}" for name in shown))
    print(
        f"  probability of {task.event}: {event_probability(task, model, person)[0]:.3f}, "
        f"95% credible interval [{lower:.3f}, {upper:.3f}]; the truth: {task.y_test.iloc[0]}"
    )


def draw(task: Task, model: Pipeline, reference: Pipeline, path: str, n_coefficients: int = 14) -> None:
    """Draw the reliability diagram and the coefficients' credible intervals."""
    plt.rcParams.update({"font.size": 10.5, "axes.edgecolor": GREY, "axes.labelcolor": DARK, "text.color": DARK})
    figure = plt.figure(figsize=(13, 6.2), layout="constrained")
    grid = figure.add_gridspec(2, 2, height_ratios=[4, 1], width_ratios=[1, 1.25], wspace=0.06)
    top, bottom, right = (figure.add_subplot(grid[spot]) for spot in ((0, 0), (1, 0), (slice(None), 1)))
    epsilon = model[-1].epsilon
    figure.suptitle(
        f"{task.title}: Bayesian logistic regression, ({epsilon:g}, {DELTA:g})-differentially private",
        fontsize=13.5, fontweight="bold", x=0.01, ha="left",
    )  # fmt: skip

    event, probability = outcome(task), event_probability(task, model, task.X_test)
    top.plot([0, 1], [0, 1], color=GREY, lw=1, ls="--", label="perfectly calibrated")
    predicted, observed, _ = bins(event, event_probability(task, reference, task.X_test)).T
    top.plot(predicted, observed, "o", mfc="white", mec=GREY, ms=7, label="not private")
    predicted, observed, count = bins(event, probability).T
    top.errorbar(
        predicted, observed, 1.96 * np.sqrt(observed * (1 - observed) / count),
        fmt="o-", color=BLUE, lw=1.6, ms=6, capsize=3, label="private, with 95% sampling error",
    )  # fmt: skip
    top.set(xlim=(-0.02, 1.02), ylim=(-0.02, 1.02), ylabel=f"observed share of {task.event}")
    top.set_title("Are the probabilities honest?", loc="left", fontsize=12)
    top.legend(frameon=False, loc="lower right")
    top.tick_params(labelbottom=False)
    bottom.hist(probability, bins=np.linspace(0, 1, 41), color=BLUE, alpha=0.75)
    bottom.set(xlim=(-0.02, 1.02), xlabel=f"predicted probability of {task.event}", ylabel="people")

    rows = coefficients(task, model)[:n_coefficients][::-1]
    names = [name for name, *_ in rows]
    mean, lower, upper = np.array([row[1:] for row in rows]).T
    sure = (lower > 0) | (upper < 0)
    colours = np.where(~sure, GREY, np.where(mean > 0, BLUE, ORANGE))
    places = np.arange(len(rows))
    right.axvline(0, color=GREY, lw=1)
    right.hlines(places, lower, upper, color=colours, lw=3.2, alpha=0.55)
    right.scatter(mean, places, c=colours, s=42, zorder=3)
    right.set_yticks(places, names)
    right.set(xlabel=f"change of the log-odds of {task.event}", ylim=(-0.7, len(rows) - 0.3))
    right.set_title("What matters? (95% credible intervals)", loc="left", fontsize=12)
    right.grid(axis="x", color="#e8e8e8")
    right.set_axisbelow(True)
    for axes in (top, bottom, right):
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=150)
    plt.close(figure)


def main() -> None:
    """Fit, report, draw."""
    parser = argparse.ArgumentParser(description="Private Bayesian logistic regression on census data.")
    parser.add_argument("--epsilon", type=float, default=1.0, help="privacy budget (default: %(default)s)")
    parser.add_argument("--output", default="demo.png", help="picture to write (default: %(default)s)")
    options = parser.parse_args()

    task = load()
    print(f"{task.title}: {len(task.y_train)} people to learn from, {len(task.y_test)} to test on.")
    print(f"Fitting with epsilon={options.epsilon:g}, delta={DELTA:g} ...", flush=True)
    model = Pipeline(
        [
            ("prepare", task.preprocessor),
            (
                "classify",
                DPBayesianLogisticRegression(
                    epsilon=options.epsilon, delta=DELTA, classes=task.classes, data_norm=task.data_norm
                ),
            ),
        ]
    )
    start = time.perf_counter()
    model.fit(task.X_train, task.y_train)
    seconds = time.perf_counter() - start
    # What privacy costs shows beside a fit that has none.
    reference = Pipeline([("prepare", task.preprocessor), ("classify", LogisticRegression(max_iter=1000))])
    reference.fit(task.X_train, task.y_train)

    report(task, model, reference, seconds)
    draw(task, model, reference, options.output)
    print(f"\nPicture: {options.output}")


if __name__ == "__main__":
    main()
