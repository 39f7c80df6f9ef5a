"""
What an epsilon means
=====================

Explain epsilon and delta to somebody who has to sign for them. A hospital wants to publish a model
of its patients. Differential privacy bounds what anybody can learn from it about one patient, by
two numbers, epsilon and delta. No data are needed here: the bounds follow from the noise alone.
"""

# %%
# Four budgets
# ------------
# The training has 500 rounds on samples of 1% of the patients, with noise for four values of
# epsilon. Delta is the probability that the bound fails without limit. It must be well below one
# over the number of patients; one in 100,000 suits a table of some thousands.

import matplotlib.pyplot as plt

from skdpbayes.displays import PrivacyProfileDisplay, TradeOffDisplay
from skdpbayes.privacy import calibrate_noise

DELTA = 1e-5
curves = {epsilon: calibrate_noise(epsilon, DELTA, 0.01, 500).curve for epsilon in (0.1, 1, 3, 8)}
names = [f"epsilon {epsilon}" for epsilon in curves]

# %%
# Was she a patient?
# ------------------
# Take the strongest possible attacker, who knows everything about a woman and all other patients,
# sees each step of the training, and asks only whether her record was used. A random attacker who
# accuses 1 of 100 women who were *not* patients (false positives) finds 1 of 100 who were. The
# curves bound what the best attacker finds. No method, known or unknown, finds more.

figure, (left, right) = plt.subplots(1, 2, figsize=(12, 5.4), layout="constrained")
TradeOffDisplay.from_spent(curves.values(), names=names, ax=left)
TradeOffDisplay.from_spent(curves.values(), names=names, scale="log", ax=right)
figure.suptitle(
    "The best attack on the published model (right: the same, for attackers who are seldom wrong)"
)

print("Of 100 patients, the best attacker who accuses 1 in 100 others finds at most")
for epsilon, curve in curves.items():
    print(f"  epsilon {epsilon:<4}  {100 * curve.tpr(0.01):5.1f}")

# %%
# What is in her record?
# ----------------------
# An attacker may know that she was a patient and want the rest. Suppose that a good guess of her
# record is right once in a thousand without the model. With it, the best attacker is right at most
# this often:

PRIOR = 1e-3
print("Guesses of a record that are right, of 1000 (1 without the model)")
for epsilon, curve in curves.items():
    print(f"  epsilon {epsilon:<4}  at most {1000 * curve.reconstruction(PRIOR):5.1f}")

# %%
# Epsilon and delta belong together
# ---------------------------------
# A guarantee is a whole curve, and a report names one point on it: a smaller delta has a larger
# epsilon. Compare two epsilons only at the same delta.

PrivacyProfileDisplay.from_spent(curves.values(), names=names)

# %%
# What is not promised
# --------------------
# The bounds cover what *her record* adds. If the model shows that smokers fall ill more often, this
# applies to every smoker, patient or not. The bounds are for one row: a patient with three rows has
# less protection. And they cover this training alone: later fits to the same patients add to it
# (see the page on budgets).

plt.show()
