"""Seconds to import a library after scikit-learn: ``import_time.py MODULE NAME HEAVY...``.

``from MODULE import NAME`` after scikit-learn's logistic regression; HEAVY are modules to look for
afterwards. Prints a line of JSON.
"""

import importlib
import json
import sys
import time

import sklearn.linear_model  # noqa: F401

module, name, *heavy = sys.argv[1:]
start = time.perf_counter()
getattr(importlib.import_module(module), name)
seconds = time.perf_counter() - start
print(
    json.dumps({"seconds": seconds, "loaded": [other for other in heavy if other in sys.modules]})
)
