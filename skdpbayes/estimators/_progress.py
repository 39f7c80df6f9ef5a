"""Progress of a fit: steps and time, for scikit-learn's callbacks and for `verbose`. Nothing here has seen a row."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable
from typing import Any, Self

from sklearn.callback import CallbackSupportMixin

_ROWS = {"X", "y", "metadata", "fitted_estimator"}
_TASKS = 100  # per fit, whatever its number of steps
_EVERY = 2.0  # seconds between lines


class WatchedMixin(CallbackSupportMixin):
    """Estimators whose fits tell callbacks of scikit-learn, such as its `ProgressBar`, how far they are."""

    def set_callbacks(self, *callbacks: Any) -> Self:
        """Set callbacks, such as `sklearn.callback.ProgressBar`.

        A fit tells them how much of it is done, in hundredths. It hands them no rows, and none can
        end it: its plan has been charged. The callbacks stay with the object, and
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
            If one is not a callback, or asks for rows or for a model in the making.
        """
        for callback in callbacks:
            asked = _ROWS & {
                name for hook in _hooks(callback) for name in inspect.signature(hook).parameters
            }
            if asked:
                raise TypeError(
                    f"{type(callback).__name__} asks for {', '.join(sorted(asked))}: a private fit hands no rows to "
                    "callbacks. ProgressBar works; score on other rows after the fit."
                )
        return super().set_callbacks(*callbacks)


def _hooks(callback: Any) -> list[Callable[..., Any]]:
    names = ("on_fit_task_begin", "on_fit_task_end")
    return [hook for hook in (getattr(callback, name, None) for name in names) if callable(hook)]


class Progress:
    """Told of the steps that are done; tells callbacks in hundredths, and prints a line now and then if `verbose`.

    Parameters
    ----------
    estimator : WatchedMixin
        Within a call that is managed by `sklearn.callback.with_callbacks`.
    n_steps : int
    """

    def __init__(self, estimator: WatchedMixin, n_steps: int) -> None:
        self._estimator, self._n_steps, self._told = estimator, n_steps, 0
        self._start = self._printed = time.perf_counter()
        self._context = estimator._init_callback_context(max_subtasks=_TASKS)
        self._context.call_on_fit_task_begin(estimator=estimator)

    def __call__(self, done: int) -> None:
        """So many steps are done."""
        if getattr(self._estimator, "_skl_callbacks", None):
            while self._told < _TASKS * done // self._n_steps:
                self._told += 1
                task = self._context.subcontext(task_name="hundredth").call_on_fit_task_begin(
                    estimator=self._estimator
                )
                task.call_on_fit_task_end(estimator=self._estimator)
        now = time.perf_counter()
        if getattr(self._estimator, "verbose", 0) and (
            now - self._printed > _EVERY or done == self._n_steps
        ):
            self._printed, seconds = now, now - self._start
            left = (
                f", about {seconds * (self._n_steps / done - 1):.0f} s left"
                if done < self._n_steps
                else ""
            )
            print(
                f"[{type(self._estimator).__name__}] step {done} of {self._n_steps}: {seconds:.1f} s{left}"
            )

    def finish(self) -> None:
        """Tell callbacks that all is done."""
        self._context.call_on_fit_task_end(estimator=self._estimator)
