"""The NA-DPVI authors' code for ``benchmarks.comparison``: runs in an environment of its own.

``python na_dpvi_runs.py FOLDER data.npz`` has their code in FOLDER, and Adult's ``x`` and ``y``;
each line of JSON on standard input is answered with CPU seconds. What is not installed (plots, and
opacus, whose noise multiplier is given instead) is replaced by stand-ins before the import.

``{"what": "posterior", "noise": 7.5, "iterations": 10000, "warmup": 1000, "samples": 4000}``: their
linear regression in ten columns, then NUTS for the optimum given the trace; the answer has sums of
the trace too, the draws of NUTS by chain, and the number of its divergent transitions.
``{"what": "adult", "noise": 7.5, "iterations": [5, 10]}``: seconds of their logistic regression's
private run, by number of iterations; NUTS, which comes on top, is not run.
"""

import contextlib
import io
import json
import sys
import time
from unittest.mock import MagicMock

folder, data = sys.argv[1:]
sys.path.insert(0, folder)
for name in (
    "matplotlib", "matplotlib.pyplot", "opacus", "opacus.accountants", "opacus.accountants.utils",
    "pandas", "sklearn", "sklearn.calibration", "tueplots",
):  # fmt: skip
    sys.modules[name] = MagicMock()

import adult_uci_experiments as adult  # noqa: E402  # of FOLDER, like the next three
import coverage_experiment as coverage  # noqa: E402
import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import noise_aware_dpsgd as theirs  # noqa: E402
import numpy as np  # noqa: E402
import utils  # noqa: E402
from numpyro.infer import MCMC  # noqa: E402

samplers = []


def remembered(sampler, *arguments, _run=MCMC.run, **options):
    _run(sampler, *arguments, **options)
    samplers.append(sampler)


MCMC.run = remembered  # their code keeps draws only


def timed(function, *arguments):
    start = time.process_time()
    with contextlib.redirect_stdout(io.StringIO()):
        jax.block_until_ready(list(function(*arguments).to_dict().values()))
    return time.process_time() - start


def arguments_of(request, set_defaults, x, y, dimension):
    own = set_defaults(utils.DynamicAttributes())
    own.train_xs, own.train_ys, own.theta_dimension = x, y, dimension
    own.custom_noise_scale = request["noise"]
    own.algorithm_prng_key = jax.random.PRNGKey(0)
    return own


def by_chain(draws):
    """Draws of shape (chains, draws, parameters); NumPyro joins chains one after the other."""
    draws = np.asarray(draws)
    return draws.reshape(samplers[-1].num_chains, -1, draws.shape[-1])


def posterior(request):
    samplers.clear()
    theta = jnp.concatenate(
        [jax.random.normal(jax.random.PRNGKey(1), (11,)) / 3, jnp.array([0.025])]
    )
    x, y = utils.generate_data_linear_regression10d(theta, jax.random.PRNGKey(2))
    own = arguments_of(request, coverage.set_default_args_linear_regression10d, x, y, 12)
    own.training_iterations = request["iterations"]
    own.mcmc_num_warmup, own.mcmc_num_samples = request["warmup"], request["samples"]
    tracker = utils.DynamicAttributes()
    run = timed(theirs.perform_dpsgd, own, tracker)
    theirs.calculate_hessian_and_optimal_phi_priors(own, tracker)
    nuts = timed(theirs.perform_mcmc_sampling, own, tracker)
    first = int(own.trace_burn_in_percentage * request["iterations"])
    x, g = (
        np.asarray(trace, float)[first:] for trace in (tracker.phi_trace, tracker.gradient_trace)
    )
    dx, dg = x - x.mean(axis=0), g - g.mean(axis=0)
    scale = np.concatenate([own.mu_gradient_scale, own.pre_transformed_covariance_gradient_scale])
    found = {
        "n": np.full(x.shape[1], len(x)), "mean_x": x.mean(axis=0), "mean_g": g.mean(axis=0),
        "sxx": (dx * dx).sum(axis=0), "sxg": (dx * dg).sum(axis=0), "sgg": (dg * dg).sum(axis=0),
        "noise_variance": (request["noise"] * own.clipping_threshold / scale) ** 2,
        "v_mean": tracker.hessian_prior_mean, "v_sd": tracker.hessian_prior_std,
        "prior_mean": tracker.phi_prior_mean,
        "draws": by_chain(tracker.optimal_phi_samples),
        "divergences": sum(np.sum(s.get_extra_fields()["diverging"]) for s in samplers),
    }  # fmt: skip
    lists = {name: np.asarray(values, float).tolist() for name, values in found.items()}
    return {"run_cpu": run, "nuts_cpu": nuts, "kappa": own.sampling_rate, **lists}


def logistic(request):
    with np.load(data) as archive:
        x, y = (jnp.asarray(archive[name], jnp.float32) for name in ("x", "y"))
    own = arguments_of(request, adult.set_default_args, x, y, x.shape[1])
    seconds = []
    for own.training_iterations in request["iterations"]:
        seconds.append(timed(theirs.perform_dpsgd, own, utils.DynamicAttributes()))
    return {"cpu": seconds, "iterations": request["iterations"]}


if __name__ == "__main__":
    for line in sys.stdin:
        request = json.loads(line)
        answer = {"posterior": posterior, "adult": logistic}[request["what"]](request)
        print(json.dumps(answer), flush=True)
