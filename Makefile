# `make help` lists the commands. All that is needed is make, Python 3.11 to 3.13 and a package registry.
PYTHON ?= python3
VENV ?= .venv
# Where real data sets of benchmarks lie, if anywhere. Tests, demo and documentation need none.
DATA_HOME ?= $(or $(SKDPBAYES_DATA_HOME),$(wildcard ../shared/data))
TEST_WORKERS ?= 2
PYTEST_ARGS ?=
UTILITY_ARGS ?=
NA_DPVI_ARGS ?=
CALIBRATION_ARGS ?=
COVERAGE_ARGS ?=
HONESTY_ARGS ?=
LARGE_ARGS ?=
DEVICES_ARGS ?=
SPHINX_ARGS ?=

PY := $(VENV)/bin/python
export SKDPBAYES_DATA_HOME := $(if $(DATA_HOME),$(abspath $(DATA_HOME)))
# Without a screen matplotlib must not look for one.
export MPLBACKEND ?= Agg

# Each test process keeps to one thread, so that the processes do not compete for cores. Most of their time goes to
# compiling, which takes little more than half of it without XLA's newer code generator, for programs as fast.
ONE_THREAD = OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 MKL_NUM_THREADS=1 \
	XLA_FLAGS="--xla_cpu_multi_thread_eigen=false --xla_cpu_use_fusion_emitters=false --xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true --xla_cpu_parallel_codegen_split_count=1 $$XLA_FLAGS"
# What all test processes together need, in GB, above which the run fails (it is printed in any case).
MOST_MEMORY ?= inf
PYTEST = $(ONE_THREAD) $(PY) tools/peak_memory.py --limit $(MOST_MEMORY) -- $(PY) -m pytest -n $(TEST_WORKERS) --dist loadfile

.DEFAULT_GOAL := help
.PHONY: help demo test test-slow test-data fuzz bench bench-speed bench-study bench-utility bench-coverage bench-honesty bench-settings bench-na-dpvi bench-calibration bench-mixture bench-peers bench-private-peers bench-d3p-mixture bench-d3p-hierarchical bench-topics bench-belief-net bench-autoencoder bench-dp-sgld bench-pictures bench-vips-coverage bench-vips-accounting bench-participation bench-choice bench-persons bench-for-whom bench-papers bench-large bench-devices pictures lint docs lock clean env env-dev python

help: ## list the commands
	@sed -n 's/^\([a-z0-9-]*\):.*## /  make \1\t/p' $(firstword $(MAKEFILE_LIST)) | expand -t 32

demo: env ## fit a private model to a survey; prints a report and draws demo.png (a minute, and a few the first time)
	@$(PY) examples/demo.py

test: env ## run the tests, but for the slow ones
	$(PYTEST) $(PYTEST_ARGS)

test-slow: env ## run the slow tests
	$(PYTEST) -m slow $(PYTEST_ARGS)

test-data: env ## run the tests that read the Adult table (DATA_HOME=folder that holds adult.csv.gz)
	@test -f "$$SKDPBAYES_DATA_HOME/adult.csv.gz" || { \
	  echo "skdpbayes: there is no adult.csv.gz in DATA_HOME ('$$SKDPBAYES_DATA_HOME')." >&2; exit 1; }
	$(PYTEST) -m "adult and not slow" $(PYTEST_ARGS)

fuzz: python ## look for a row that raises or changes another (Linux; FUZZ_SECONDS=60; FUZZ_INPUT=hex runs one input)
	@$(PYTHON) tools/bootstrap.py --env .venv-fuzz --lock requirements/fuzz.lock --package
	$(ONE_THREAD) .venv-fuzz/bin/python tests/intake/fuzz_rows.py

bench: bench-speed bench-study bench-utility bench-coverage bench-honesty bench-settings bench-na-dpvi bench-calibration bench-mixture bench-private-peers bench-topics bench-belief-net bench-autoencoder bench-dp-sgld bench-pictures bench-vips-coverage bench-vips-accounting bench-participation bench-choice bench-persons bench-for-whom bench-papers bench-large ## run all benchmarks

bench-speed: env ## time of one step, beside non-private NumPyro, and of first fits (FIRST_FIT_ARGS="--quick")
	$(PY) -m benchmarks.speed
	$(PY) -m benchmarks.first_fit $(FIRST_FIT_ARGS)

bench-study: env ## 45 fits of a table like Adult beside their steps alone (ten minutes; STUDY_ARGS="--studies folds --solvers dpvi")
	$(PY) -m benchmarks.study $(STUDY_ARGS)

bench-large: env ## tables larger than memory: seconds of a round and peak memory (9 GB of disk; LARGE_ARGS="--rows 1e6 1e7")
	$(PY) -m benchmarks.large $(LARGE_ARGS)

bench-utility: env ## utility on Adult and on the peers' tasks, beside the peers' figures
	$(PY) -m benchmarks.utility $(UTILITY_ARGS)

bench-devices: env ## rounds on an accelerator, beside the processor of the same machine (minutes; DEVICES_ARGS="--parts noise")
	$(PY) -m benchmarks.devices $(DEVICES_ARGS)

bench-coverage: env ## how often credible intervals cover the truth, on simulated data
	$(PY) -m benchmarks.coverage
	$(PY) -m benchmarks.coverage --solver na-dpvi

bench-honesty: env ## which estimator is calibrated where: coverage, width, CRPS (hours; HONESTY_ARGS="--cells poisson mixture-2sd --seeds 20")
	$(PY) -m benchmarks.honesty $(HONESTY_ARGS)

bench-settings: env ## coverage at settings drawn at random (half an hour; SETTINGS_ARGS="--families linear --first 100 --settings 40")
	$(PY) -m benchmarks.random_settings $(SETTINGS_ARGS)

bench-na-dpvi: env ## tables and figures of the NA-DPVI paper, with widths (minutes; NA_DPVI_ARGS=--full for hours)
	$(PY) -m benchmarks.na_dpvi $(NA_DPVI_ARGS)

bench-calibration: env ## calibration of predictions on Adult, beside the NA-DPVI paper's (minutes)
	$(PY) -m benchmarks.calibration $(CALIBRATION_ARGS)

bench-mixture: env ## log-likelihood of Gaussian mixtures, d3p's Figure 7 among them (minutes)
	$(PY) -m benchmarks.mixture $(MIXTURE_ARGS)

# Those that install peers are not of `make bench`. They need Python 3.11, and keep peers in .peers.
bench-peers: env ## all figures of ours beside the peers', which it installs (half an hour; PEERS_ARGS="--seeds 3 --quick")
	$(PY) -m benchmarks.comparison $(PEERS_ARGS)

bench-private-peers: env ## utility beside other private methods, which it runs itself (minutes; PRIVATE_PEERS_ARGS="--seeds 3 --solver vips")
	$(PY) -m benchmarks.private_comparison $(PRIVATE_PEERS_ARGS)

bench-d3p-mixture: env ## the same beside d3p itself, which is installed in .peers (Python 3.11; minutes)
	$(PY) -m benchmarks.d3p_mixture $(D3P_MIXTURE_ARGS)

bench-d3p-hierarchical: env ## AUC of hierarchical logistic regression beside d3p's, and its coverage (Python 3.11; hours)
	$(PY) -m benchmarks.d3p_hierarchical $(D3P_HIERARCHICAL_ARGS)

bench-belief-net: env ## sigmoid belief networks on binarised MNIST, beside independent pixels (minutes)
	$(PY) -m benchmarks.belief_net $(BELIEF_NET_ARGS)

bench-autoencoder: env ## auto-encoders on MNIST beside NumPyro's without privacy (ten minutes)
	$(PY) -m benchmarks.autoencoder $(AUTOENCODER_ARGS)

bench-dp-sgld: env ## step sizes, Adult and MNIST of the DP-SGLD paper (ten minutes; DP_SGLD_ARGS="--parts mnist --networks convolutional": an hour)
	$(PY) -m benchmarks.dp_sgld $(DP_SGLD_ARGS)

bench-papers: env ## tables and figures of the five papers (PAPERS_ARGS="--list", "--only dp-advi-fig1", "--full": hours)
	$(PY) -m benchmarks.papers $(PAPERS_ARGS)

bench-topics: env ## perplexity of topic models, 20 Newsgroups among them (half an hour; TOPICS_ARGS="--topics 4" prints topics)
	$(PY) -m benchmarks.topics $(TOPICS_ARGS)

bench-pictures: env ## pictures of private mixtures, topics and weights
	$(PY) -m benchmarks.pictures $(PICTURES_ARGS)

pictures: env ## draw the pictures of README.md and of the home page anew
	$(PY) -m tools.readme_pictures

bench-vips-coverage: env ## how often intervals of logistic regression by vips cover the truth, 2000 fits a line
	$(PY) -m benchmarks.vips_coverage $(COVERAGE_ARGS)

bench-vips-accounting: env ## noise and epsilon at the settings of the VIPS paper, by its accounting and ours
	$(PY) -m benchmarks.vips_accounting

bench-participation: env ## noise and variance of full, Poisson and balanced batches at equal passes (a minute or two)
	$(PY) -m benchmarks.participation

bench-persons: env ## persons with several rows: cost and coverage (minutes; PERSONS_ARGS="--models logistic --fits 100")
	$(PY) -m benchmarks.persons $(PERSONS_ARGS)

bench-for-whom: env ## how much privacy widens regressions, by the number of rows (ten minutes; FOR_WHOM_ARGS="--rows 500")
	$(PY) -m benchmarks.for_whom $(FOR_WHOM_ARGS)

bench-choice: env ## priors chosen from what was released, beside a private search (ten minutes; CHOICE_ARGS="--tasks sparse")
	$(PY) -m benchmarks.choice $(CHOICE_ARGS)

lint: env-dev ## ruff and mypy
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy

docs: env-dev ## build and check the pages in docs/_build (SPHINX_ARGS="-D plot_gallery=0": no examples)
	@test -f docs/conf.py || { echo "docs/conf.py is not there: nothing to build." >&2; exit 1; }
	@rm -f docs/generated/*.rst  # pages of names that are no more
	$(PY) -m sphinx -E -W -b html $(SPHINX_ARGS) docs docs/_build/html
	$(PY) tools/check_pages.py docs/_build/html

# All locks in one command, the second and third held to the pins of the first.
LOCK_OPTIONS = --quiet --universal --python-version 3.11 --fork-strategy fewest --generate-hashes \
	--no-emit-index-url --no-annotate --only-binary :all: --custom-compile-command "make lock" \
	--group build pyproject.toml $(LOCK_ARGS)
PEER_LOCK_OPTIONS = --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-annotate \
	--only-binary :all: --custom-compile-command "make lock" $(LOCK_ARGS)
lock: python ## write requirements/*.lock anew (LOCK_ARGS=--upgrade for newer versions)
	@$(PYTHON) tools/bootstrap.py --env .venv-lock --lock requirements/uv.lock
	.venv-lock/bin/uv pip compile $(LOCK_OPTIONS) --extra test --output-file requirements/test.lock
	.venv-lock/bin/uv pip compile $(LOCK_OPTIONS) --extra test --extra dev --extra docs \
		--constraint requirements/test.lock --output-file requirements/dev.lock
	.venv-lock/bin/uv pip compile $(LOCK_OPTIONS) --extra datasets requirements/fuzz.in \
		--constraint requirements/test.lock --output-file requirements/fuzz.lock
	for peer in d3p diffprivlib na_dpvi; do .venv-lock/bin/uv pip compile $(PEER_LOCK_OPTIONS) benchmarks/peers/$$peer.in \
		--output-file benchmarks/peers/$$peer.lock || exit 1; done

clean: ## remove the environments and everything that was built
	rm -rf .venv .venv.lock .venv-fuzz .venv-fuzz.lock .venv-lock .venv-lock.lock .peers .pytest_cache .ruff_cache \
		.mypy_cache .hypothesis .fuzz docs/_build docs/generated docs/auto_examples build dist demo.png
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

env: python
	@$(PYTHON) tools/bootstrap.py --env $(VENV) --lock requirements/test.lock --package

env-dev: env
	@$(PYTHON) tools/bootstrap.py --env $(VENV) --lock requirements/dev.lock --package

python:
	@command -v $(PYTHON) >/dev/null 2>&1 || { \
	  echo "skdpbayes: '$(PYTHON)' is not on the path. Install Python 3.11, 3.12 or 3.13, or run make PYTHON=/path/to/python." >&2; \
	  exit 1; }
