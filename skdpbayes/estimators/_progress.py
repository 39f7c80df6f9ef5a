"""Progress of a fit, for scikit-learn's callbacks and for `verbose`; nothing here sees a row."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable
from typing import Any, Self

from sklearn.callback import CallbackSupportMixin

_ROWS = {"X", "y", "metadata", "fitted_estimator"}
_TASKS = 100  # of each fit, for any number of steps
_EVERY = 2.0  # seconds between lines


class WatchedMixin(CallbackSupportMixin):
    """Estimators whose fits report progress to callbacks such as scikit-learn's `ProgressBar`."""

    def set_callbacks(self, *callbacks: Any) -> Self:
        """Set callbacks, such as `sklearn.callback.ProgressBar`.

        A fit reports its progress in hundredths. It passes no rows to callbacks, and no callback
        can stop it, since its plan has been charged. Callbacks stay with the object;
        ``set_callbacks()`` removes them.

        Parameters
        ----------
        *callbacks : callback instances

        Returns
        -------
        self

        Raises
        ------
        TypeError
            If an argument is not a callback, or asks for rows or for an unfinished model.
        """
        for callback in callbacks:
            asked = _ROWS & {
                name for hook in _hooks(callback) for name in inspect.signature(hook).parameters
            }
            if asked:
                raise TypeError(
                    f"{type(callback).__name__} asks for {', '.join(sorted(asked))}: a private fit "
                    "hands no rows to callbacks. ProgressBar works; score on other rows after the "
                    "fit."
                )
        return super().set_callbacks(*callbacks)


def _hooks(callback: Any) -> list[Callable[..., Any]]:
    names = ("on_fit_task_begin", "on_fit_task_end")
    return [hook for hook in (getattr(callback, name, None) for name in names) if callable(hook)]


class Progress:
    """Progress of a fit, reported to callbacks in hundredths and, on request, printed.

    Parameters
    ----------
    estimator : WatchedMixin
        Within a call that `sklearn.callback.with_callbacks` manages.
    n_steps : int
    verbose : bool
        Whether to print a line at once and then every two seconds.
    """

    def __init__(self, estimator: WatchedMixin, n_steps: int, *, verbose: bool) -> None:
        self._estimator, self._n_steps, self._told = estimator, n_steps, 0
        self._verbose = verbose
        self._start = self._printed = time.perf_counter()
        self._context = estimator._init_callback_context(max_subtasks=_TASKS)
        self._context.call_on_fit_task_begin(estimator=estimator)
        if verbose:
            print(
                f"[{type(estimator).__name__}] step 0 of {n_steps}; a first fit compiles for "
                "seconds",
                flush=True,
            )

    def __call__(self, done: int) -> None:
        """Report that `done` steps are done."""
        if vars(self._estimator).get("_skl_callbacks"):
            while self._told < _TASKS * done // self._n_steps:
                self._told += 1
                task = self._context.subcontext(task_name="hundredth").call_on_fit_task_begin(
                    estimator=self._estimator
                )
                task.call_on_fit_task_end(estimator=self._estimator)
        now = time.perf_counter()
        if self._verbose and (now - self._printed > _EVERY or done == self._n_steps):
            self._printed, seconds = now, now - self._start
            line = f"step {done} of {self._n_steps}: {seconds:.1f} s"
            if done < self._n_steps:
                line += f", about {seconds * (self._n_steps / done - 1):.0f} s left"
            print(f"[{type(self._estimator).__name__}] {line}")

    def finish(self) -> None:
        """Tell callbacks that the fit is done."""
        self._context.call_on_fit_task_end(estimator=self._estimator)
