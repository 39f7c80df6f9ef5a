"""Models: priors and likelihoods, and nothing else."""
