"""d3p (Prediger et al. 2021): time and loss of auto-encoders, small data, a mixture.

The paper's seconds are of a V100; ours are of the processor that runs this, beside NumPyro without
privacy on the same one, so that ratios compare. d3p itself joins with ``--peers``.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from benchmarks import _peers, autoencoder, d3p_hierarchical, d3p_mixture, mixture
from benchmarks.papers._entry import (
    Entry,
    Found,
    Images,
    Line,
    Missing,
    Order,
    Table,
    by_level,
    curves,
    images,
    legend,
    mean_and_error,
    one_panel,
    panels,
    quoted,
)

BATCH, SIGMA, EPOCHS = autoencoder.BATCH, autoencoder.SIGMA, autoencoder.EPOCHS

TIMED = 10_000  # images behind a timing: a step's time does not depend on their number

# Seconds an epoch and loss of d3p, of TensorFlow Privacy, and of both without privacy (Table 2);
# Feistel and built-in sampler (Table 3).
Pair = tuple[float, float]
TABLE2: dict[str, dict[str, Pair]] = {
    "mnist": {
        "d3p": (0.56, 174.06), "TensorFlow Privacy": (6.43, 171.26),
        "NumPyro, not private": (0.30, 99.63), "TensorFlow, not private": (1.84, 105.50),
    },
    "fashion-mnist": {
        "d3p": (0.55, 304.74), "TensorFlow Privacy": (7.19, 303.14),
        "NumPyro, not private": (0.29, 243.99), "TensorFlow, not private": (7.56, 244.40),
    },
    "cifar-10": {
        "d3p": (4.22, 2123.05), "TensorFlow Privacy": (49.34, 2129.20),
        "NumPyro, not private": (2.14, 1903.29), "TensorFlow, not private": (11.06, 2038.92),
    },
}  # fmt: skip
TABLE3 = {"Feistel": (0.56, 0.55, 4.22), "built-in": (0.66, 0.65, 4.31)}


def network(data: Images) -> dict[str, Any]:
    """The paper's network: 784-400-50 and back, or three convolutions for images with colours."""
    if len(data.shape) == 2:
        return dict(autoencoder.PAPER)
    return {
        "n_components": 50,
        "hidden_layer_sizes": (150,),
        "convolutions": [(32, 3, 2), (64, 3, 2), (64, 3, 2)],
        "image_shape": data.shape,
    }


def values(data: Images) -> tuple[np.ndarray, np.ndarray]:
    """Training images between 0 and 1, and test images binarised once."""
    train, test = (rows.astype(np.float32) / 255 for rows in (data.x_train, data.x_test))
    return train, (np.random.default_rng(1).random(test.shape) < test).astype(np.float32)


def seconds_per_step(run: Callable[[int], object], short: int, long: int) -> float:
    """Of a step, from runs of two lengths after one that compiles."""
    run(short)
    took = dict.fromkeys((short, long), math.inf)
    for n_steps in (short, long, short, long):  # the faster of two: others may use the machine
        start = time.perf_counter()
        run(n_steps)
        took[n_steps] = min(took[n_steps], time.perf_counter() - start)
    return max(took[long] - took[short], 1e-9) / (long - short)


def private_step(train: np.ndarray, batch: int, numerics: str, steps: Any, own: Any) -> float:
    """Seconds of one of our private steps; compiling, padding and what is done once is left out."""

    def fit(n_steps: int) -> object:
        return autoencoder.private(train, 0.5, n_steps, batch, numerics=numerics, **own)

    return seconds_per_step(fit, *steps)


def peer_seconds(order: Order, train: np.ndarray) -> Any:
    """A function from requests to d3p's answers, or None where it was not asked for."""
    try:
        python = order.d3p()
    except Missing as error:
        print(f"d3p itself: left out, {error}", flush=True)
        return None
    script = _peers.PEERS / "d3p_autoencoder.py"
    return _peers.Worker([str(python), str(script)], {"x": train})


def table2(order: Order, name: str) -> Found:
    """Seconds of an epoch, and loss after twenty."""
    data = images(order, name)
    train, test = values(data)
    n, own = len(train), network(data)
    dense = len(data.shape) == 2  # gradients of convolutions are formed, record by record
    epochs = order.choose(2 if dense else 1, EPOCHS)
    steps = order.choose((5, 30) if dense else (1, 4), (50, 300))
    timed = train[:TIMED]
    per_epoch = n // BATCH
    seconds = {
        f"ours, {numerics}": per_epoch * private_step(timed, BATCH, numerics, steps, own)
        for numerics in ("fast", "secure")
    }
    floor = math.nan
    if dense:
        floor = per_epoch * autoencoder.numpyro_seconds(timed, BATCH, steps[1]) / steps[1]
        seconds["NumPyro, not private"] = floor
        worker = peer_seconds(order, timed)
        if worker is not None:
            with worker:
                worker.ask(what="private", batch=BATCH, n_steps=5)
                answer = worker.ask(what="private", batch=BATCH, n_steps=5)
                seconds["d3p 0.2.0 here"] = per_epoch * answer["seconds"] / 5
    spent = _epsilon(n, epochs)
    losses, batch = {}, min(1024, n)
    lines = {"ours, paper's network": own, "ours, ten latent variables": own | {"n_components": 10}}
    for line, parameters in lines.items():
        levels = [(spent, ""), (math.inf, ", not private")]
        for level, suffix in levels if parameters is own or order.full else levels[:1]:
            steps_in_all = max(1, epochs * n // batch)
            model = autoencoder.private(
                train, level, steps_in_all, batch, numerics="fast", delta=(1 - 1e-9) / n,
                **parameters,
            )  # fmt: skip
            losses[line + suffix] = -float(model.score(test))
            print(f"{line}{suffix}: {losses[line + suffix]:.2f}", flush=True)
    theirs = TABLE2[name]
    peer_floor = theirs["NumPyro, not private"][0]
    rows = [
        [who, f"{s:.2f}", "" if math.isnan(floor) else f"{s / floor:.1f}"]
        for who, s in seconds.items()
    ]
    rows += [
        [f"paper, V100: {who}", f"{s:.2f}", f"{s / peer_floor:.1f}"]
        for who, (s, _) in theirs.items()
    ]
    loss_rows = [[who, f"{loss:.2f}"] for who, loss in losses.items()]
    loss_rows += [[f"paper, 20 epochs: {who}", f"{loss:.2f}"] for who, (_, loss) in theirs.items()]
    figure, axes = panels([f"{name}: seconds an epoch", f"loss after {epochs} epochs (paper: 20)"])
    for ax, bars in zip(axes, (rows, loss_rows), strict=True):
        places = range(len(bars))[::-1]
        ax.barh(places, [float(bar[1]) for bar in bars],
                color=["0.6" if bar[0].startswith("paper") else "C0" for bar in bars])  # fmt: skip
        ax.set_yticks(places, [bar[0] for bar in bars], fontsize="x-small")
        ax.set(xscale="log")
    axes[0].set_xlabel("seconds; the paper's on another machine (grey)")
    axes[1].set_xlabel("negative bound of the test images, nats")
    figure.set_size_inches(13, 4.2)
    ran = (
        f"{n} images, an epoch timed by {steps[1] - steps[0]} steps of {BATCH}; {epochs} epochs "
        f"(paper: 20) of batches of {batch} at the epsilon {spent:.3f} of noise {SIGMA} and "
        f"batches of {BATCH}, delta 1/{n}; test images binarised once; seed 0, one fit a line"
    )
    tables = [
        Table("Seconds of an epoch of batches of 128", [name, "s", "over not private"], rows),
        Table(f"Loss after {epochs} epochs", [name, "loss"], loss_rows),
    ]
    return Found(ran, tables, figure)


def _epsilon(n: int, epochs: int) -> float:
    """What the paper's noise spends, by exact accounting."""
    from skdpbayes.privacy import GaussianSteps, compose

    steps = GaussianSteps(SIGMA, min(1.0, BATCH / n), max(1, epochs * n // BATCH))
    return compose((steps,), "zero_out").epsilon(1 / n)


def samplers(n: int, batch: int, steps: int) -> dict[str, float]:
    """Seconds in which each sampler draws so many batches; compiled before."""
    import jax
    import jax.numpy as jnp

    from skdpbayes.mechanism.draws import Sampler

    def ours() -> None:
        Sampler(bytes(32), batch / n, [0, n], n).draw(steps)

    def loop(draw: Callable[[Any], Any]) -> Callable[[], object]:
        def body(i: Any, total: Any) -> Any:
            return total + draw(jax.random.fold_in(jax.random.key(0), i)).sum()

        run = jax.jit(lambda: jax.lax.fori_loop(0, steps, body, jnp.zeros((), jnp.int32)))
        return lambda: jax.block_until_ready(run())

    choices: dict[str, Callable[[], object]] = {
        "ours: Poisson, by gaps, cipher's bits": ours,
        "JAX: choice without replacement": loop(
            lambda key: jax.random.choice(key, n, (batch,), replace=False)
        ),
        "JAX: a coin for each record": loop(
            lambda key: jax.random.bernoulli(key, batch / n, (n,)).astype(jnp.int32)
        ),
        "JAX: with replacement (other accounting)": loop(
            lambda key: jax.random.randint(key, (batch,), 0, n)
        ),
    }
    found = {}
    for name, run in choices.items():
        run()
        times = []
        for _ in range(3):
            start = time.perf_counter()
            run()
            times.append(time.perf_counter() - start)
        found[name] = min(times)
    return found


def table3(order: Order) -> Found:
    """Seconds of an epoch's batches, by sampler."""
    sizes = {"60 000 rows (MNIST, Fashion)": 60_000, "50 000 rows (CIFAR-10)": 50_000}
    sizes |= order.choose({}, {"1 000 000 rows": 1_000_000})
    found = {}
    for label, n in sizes.items():
        steps = min(order.choose(50, n), n // BATCH)
        whole = n // BATCH / steps  # epochs over what is timed
        found[label] = {name: whole * s for name, s in samplers(n, BATCH, steps).items()}
    if order.peers:
        worker = peer_seconds(order, np.zeros((60_000, 4), np.float32))
        if worker is not None:
            with worker:
                request = {"what": "sampler", "batch": BATCH, "n_steps": 60_000 // BATCH}
                worker.ask(**request)
                seconds = worker.ask(**request)["seconds"]
                found["60 000 rows (MNIST, Fashion)"]["d3p 0.2.0 here: Feistel"] = seconds
    names = list(dict.fromkeys(name for line in found.values() for name in line))
    rows = [
        [name, *(f"{1000 * line[name]:.2f}" if name in line else "" for line in found.values())]
        for name in names
    ]
    rows += [
        [f"paper, V100: whole epoch, {sampler}", f"{1000 * mnist:.0f}", f"{1000 * cifar:.0f}",
         *[""] * (len(found) - 2)]
        for sampler, (mnist, _, cifar) in TABLE3.items()
    ]  # fmt: skip
    figure, (ax,) = panels(["Batches of an epoch, alone"])
    figure.set_size_inches(8, 3.8)
    places = np.arange(len(names))[::-1]
    for i, (label, line) in enumerate(found.items()):
        ax.barh(places + 0.25 * i, [1000 * line.get(name, math.nan) for name in names], 0.25,
                label=label)  # fmt: skip
    ax.axvline(100, color="black", linestyle=":", label="paper: built-in less Feistel, V100")
    ax.set_yticks(places, names, fontsize="x-small")
    ax.set(xscale="log", xlabel="milliseconds an epoch of batches of 128")
    ax.legend(fontsize="x-small")
    ran = (
        f"{order.choose('50 batches, scaled to', 'the batches of')} an epoch, alone, without the "
        "fit that the paper times; the best of three. Ours and the "
        "coins are Poisson samples, which the accountant assumes; the others are of fixed size"
    )
    return Found(ran, [Table("Milliseconds of an epoch's batches", ["", *found], rows)], figure)


def fig3(order: Order) -> Found:
    """Milliseconds of a step against the size of batches."""
    train = values(images(order, "mnist"))[0][:TIMED]
    batches = order.choose((64, 256, 1024), (16, 32, 64, 128, 256, 512, 1024))
    steps = order.choose((5, 20), (50, 150))
    own = autoencoder.PAPER
    found: dict[str, dict[float, list[float]]] = {}

    def add(name: str, batch: int, seconds: float) -> None:
        found.setdefault(name, {})[float(batch)] = [1000 * seconds]

    worker = peer_seconds(order, train)
    for batch in batches:
        for numerics in ("fast", "secure"):
            add(f"ours, {numerics}", batch, private_step(train, batch, numerics, steps, own))
        seconds = autoencoder.numpyro_seconds(train, batch, steps[1]) / steps[1]
        add("NumPyro, not private", batch, seconds)
        if worker is not None:
            for what, name in (("private", "d3p 0.2.0 here"), ("floor", "its NumPyro here")):
                worker.ask(what=what, batch=batch, n_steps=3)
                answer = worker.ask(what=what, batch=batch, n_steps=3)
                add(name, batch, answer["seconds"] / 3)
        print(f"batches of {batch}: done", flush=True)
    if worker is not None:
        worker.close()
    floor = found["NumPyro, not private"]
    ratios = {name: {b: [line[b][0] / floor[b][0]] for b in line} for name, line in found.items()}
    figure = one_panel(
        "Step of an auto-encoder, 688 884 weights, MNIST", curves(found),
        xscale="log", yscale="log", xlabel="rows in a batch", ylabel="milliseconds a step",
    )  # fmt: skip
    tables = [
        by_level("Milliseconds of a step by batch", found, "rows in a batch", 1),
        by_level("Over NumPyro without privacy", ratios, "rows in a batch", 2),
    ]
    ran = (
        f"each size timed twice, by {steps[1] - steps[0]} steps (paper: 100); one processor, shared"
        " or not, instead of a V100. The paper's figure has no numbers: 1 to 4 ms on its axis"
    )
    return Found(ran, tables, figure)


# --- Figures 4 to 6: small data -------------------------------------------------------------------

LEVELS = (*d3p_hierarchical.LEVELS, math.inf)


def own_aucs(n: int, level: float, fits: int, fit: Any = d3p_hierarchical.ours, **own: Any) -> list:
    """AUC of fits to the figure's data with so many rows."""
    problem = d3p_hierarchical.figure_data(0, n)
    models = (fit(problem, level, seed, **own) for seed in range(fits))
    return [d3p_hierarchical.score_of_ours(problem, model) for model in models]


def baseline(n: int) -> tuple[float, float]:
    """AUC of logistic regression without groups, and of the true probabilities."""
    from sklearn.linear_model import LogisticRegression

    problem = d3p_hierarchical.figure_data(0, n)
    flat = LogisticRegression().fit(problem.x[0], problem.y[0])
    return problem.auc(flat.decision_function(problem.x[1])), problem.auc(problem.probability[1])


def peer_aucs(order: Order, n: int, fits: int, iterations: int, noise: Any) -> dict:
    """AUC of d3p's fits by level, with noise by level; empty where d3p was not asked for."""
    try:
        python = order.d3p()
    except Missing:
        return {}
    published = d3p_hierarchical.PUBLISHED | {"iterations": iterations}
    plan = [
        {"entry": i, "fits": fits, "epsilon": None if math.isinf(level) else level, **published,
         "noise": None if math.isinf(level) else noise(level)}
        for i, level in enumerate(LEVELS)
    ]  # fmt: skip
    problem = d3p_hierarchical.figure_data(0, n)
    records = d3p_hierarchical.of_peer(python, [problem], plan)
    return {level: r["auc"] for level, r in zip(LEVELS, records, strict=True)}


def _noise(n: int, iterations: int) -> Callable[[float], float]:
    from skdpbayes.privacy import calibrate_noise

    rate = d3p_hierarchical.PUBLISHED["batch"] / n
    return lambda level: calibrate_noise(level, 1 / n, rate, iterations).noise_multiplier


def fig4(order: Order) -> Found:
    """Distribution of AUC at 500 rows."""
    n, fits = 500, order.fits(4, 10)
    scores = {
        "ours, dpvi": {level: own_aucs(n, level, fits) for level in LEVELS},
        "ours, dpvi, replace_one": {
            level: own_aucs(n, level, fits, adjacency="replace_one") for level in LEVELS[:-1]
        },
        "ours, the paper's listing": {
            level: own_aucs(n, level, fits, d3p_hierarchical.as_a_user) for level in LEVELS
        },
    }
    peer = peer_aucs(
        order, n, fits, 100_000, lambda level: d3p_hierarchical.PUBLISHED_NOISE[n][level]
    )
    scores |= {"d3p as published (replace_one)": peer} if peer else {}
    flat, truth = baseline(n)
    figure, (ax,) = panels([f"AUC of {n} held-out rows after {n}"])
    figure.set_size_inches(8, 4.6)
    for i, (name, line) in enumerate(scores.items()):
        places = [LEVELS.index(level) + 0.2 * (i - 1.5) for level in line]
        boxes = ax.boxplot(list(line.values()), positions=places, widths=0.17, patch_artist=True,
                           manage_ticks=False)  # fmt: skip
        for box in boxes["boxes"]:
            box.set_facecolor(f"C{i}")
        ax.plot([], [], "s", color=f"C{i}", label=name)
    ax.axhline(flat, color="red", label="no groups, not private")
    ax.axhline(truth, color="0.4", linestyle=":", label="the true probabilities")
    ax.set_xticks(range(len(LEVELS)), [f"{level:g}" for level in LEVELS])
    ax.set(xlabel=f"epsilon, at delta 1/{n} (inf: not private)", ylabel="AUC")
    ax.legend(fontsize="x-small", loc="lower right")
    title = f"AUC by epsilon; no groups {flat:.3f}, true probabilities {truth:.3f}"
    ran = (
        f"the figure's data (seed 0, the authors' generator), {fits} fits a level (paper: ten), "
        "seeds from 0; ours takes its default number of steps, d3p 100 000"
    )
    return Found(ran, [by_level(title, scores)], figure)


def fig5(order: Order) -> Found:
    """AUC against the number of rows."""
    fits, sizes = order.fits(3, 10), (100, 200, 500, 1000)
    scores: dict[str, dict[float, list[float]]] = {}
    for n in sizes:
        for level in LEVELS:
            name = "ours, not private" if math.isinf(level) else f"ours, epsilon {level:g}"
            scores.setdefault(name, {})[float(n)] = own_aucs(n, level, fits)
        noise = d3p_hierarchical.PUBLISHED_NOISE[n]
        for level, aucs in peer_aucs(order, n, fits, 100_000, noise.get).items():
            name = "d3p, not private" if math.isinf(level) else f"d3p, epsilon {level:g}"
            scores.setdefault(name, {})[float(n)] = aucs
        flat, truth = baseline(n)
        scores.setdefault("no groups, not private", {})[float(n)] = [flat]
        scores.setdefault("the true probabilities", {})[float(n)] = [truth]
    lines = curves(scores)
    figure = one_panel(
        "AUC by rows", lines, xlabel="rows for training (as many held out), delta 1/rows",
        ylabel="AUC", ylim=(0.45, 0.95),
    )  # fmt: skip
    ran = (
        f"the figure's data by size, {fits} fits a level (paper: ten), seeds from 0; bars are "
        "standard errors (the paper's bands are standard deviations). d3p has replace_one noise"
    )
    return Found(ran, [by_level("AUC by rows", scores, "rows")], figure)


def fig6(order: Order) -> Found:
    """AUC against the number of iterations at 500 rows."""
    n, fits = 500, order.fits(3, 10)
    lengths = order.choose((10, 100, 1000, 3000), (10, 30, 100, 300, 1000, 3000, 10_000))
    scores: dict[str, dict[float, list[float]]] = {}
    for level in LEVELS:
        name = "ours, not private" if math.isinf(level) else f"ours, epsilon {level:g}"
        scores[name] = {float(t): own_aucs(n, level, fits, n_steps=t) for t in lengths}
    for t in (1_000, 10_000, 100_000):
        for level, aucs in peer_aucs(order, n, fits, t, _noise(n, t)).items():
            name = "d3p, not private" if math.isinf(level) else f"d3p, epsilon {level:g}"
            scores.setdefault(name, {})[float(t)] = aucs
    flat, truth = baseline(n)
    figure = one_panel(
        f"AUC of {n} held-out rows after {n}", curves(scores),
        xscale="log", xlabel="steps, each run with the noise for all of its own", ylabel="AUC",
    )  # fmt: skip
    figure.axes[0].axhline(flat, color="red", label="no groups, not private")
    figure.axes[0].axhline(truth, color="0.4", linestyle=":", label="the true probabilities")
    legend(figure.axes[0])
    title = f"AUC by steps; no groups {flat:.3f}, true probabilities {truth:.3f}"
    ran = (
        f"the figure's data (seed 0), {fits} fits a point (paper: ten), seeds from 0; a step of "
        "ours is a batch at its default rate, of d3p ten rows, with exact noise for both"
    )
    return Found(ran, [by_level(title, scores, "steps")], figure)


def fig7(order: Order) -> Found:
    """Log-likelihood of a mixture against epsilon."""
    seeds = order.fits(3, 10)
    levels = tuple(d3p_mixture.FIGURE)
    records = {record["line"]: record for record in mixture.run("five", levels, seeds)}
    scores = {
        "ours": {level: records[f"epsilon {level:g}"]["score"] for level in levels},
        "d3p, Figure 7": {level: [x] for level, x in d3p_mixture.FIGURE.items()},
        "Jälkö et al., Figure 7": {level: [x] for level, x in d3p_mixture.FIGURE_EARLIER.items()},
        "not private, 20 starts": {math.inf: records["not private, 20 starts"]["score"]},
        "the true density": {math.inf: records["the true density"]["score"]},
    }
    lines = curves({"ours": scores["ours"]})
    lines += [quoted(list(d3p_mixture.FIGURE), list(d3p_mixture.FIGURE.values()), "d3p, Figure 7"),
              Line("Jälkö et al., Figure 7", list(d3p_mixture.FIGURE_EARLIER),
                   list(d3p_mixture.FIGURE_EARLIER.values()),
                   style={"color": "0.5", "marker": "s", "linestyle": "none"})]  # fmt: skip
    figure = one_panel(
        "Five clusters, 2000 rows", lines, xscale="log",
        xlabel="epsilon, at delta 1e-3 (the figure's by another accounting)",
        ylabel="mean log-likelihood of held-out rows",
    )  # fmt: skip
    truth, _ = mean_and_error(scores["the true density"][math.inf])
    figure.axes[0].axhline(truth, color="0.4", linestyle=":", label="the true density")
    legend(figure.axes[0])
    spent = [[f"{e:g}", f"{d3p_mixture.FIGURE_NOISE[e]:g}", f"{_figure7_cost(e):.4f}"]
             for e in levels]  # fmt: skip
    tables = [
        by_level("Log-likelihood by epsilon", scores),
        Table("Noise of the authors' script", ["claimed", "multiplier", "epsilon spent"], spent),
    ]
    ran = (
        f"{seeds} data sets of 2000 rows, {mixture.N_TEST} held-out rows (paper: one set, five "
        "fits, 100 held-out rows), seeds from 0; Figure 7 from the authors' results file"
    )
    return Found(ran, tables, figure)


def _figure7_cost(level: float) -> float:
    from skdpbayes.privacy import GaussianSteps, epsilon

    setting = d3p_mixture.PUBLISHED
    steps = GaussianSteps(d3p_mixture.FIGURE_NOISE[level], setting.batch / 2000, setting.iterations)
    return epsilon(steps, 1e-3)


ENTRIES = [
    *(
        Entry(
            f"d3p-table2-{name}",
            "d3p",
            f"Table 2, {label}",
            f"Seconds an epoch and loss of auto-encoders{hint}",
            partial(table2, name=name),
        )
        for name, label, hint in (
            ("mnist", "MNIST", ""),
            ("fashion-mnist", "Fashion", " (--data fashion-mnist=FILE.npz)"),
            ("cifar-10", "CIFAR", " (--data cifar-10=FILE.npz)"),
        )
    ),
    Entry("d3p-table3", "d3p", "Table 3", "Time of samplers", table3),
    Entry("d3p-fig3", "d3p", "Figure 3", "Time of a step by size of batches", fig3),
    Entry("d3p-fig4", "d3p", "Figure 4", "AUC of a hierarchical model, 500 rows", fig4),
    Entry("d3p-fig5", "d3p", "Figure 5", "AUC of a hierarchical model by rows", fig5),
    Entry("d3p-fig6", "d3p", "Figure 6", "AUC of a hierarchical model by steps", fig6),
    Entry("d3p-fig7", "d3p", "Figure 7", "Log-likelihood of a mixture by epsilon", fig7),
]
