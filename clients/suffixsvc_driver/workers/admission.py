"""Which worker processes have shown that their vocabulary fits the target's.

A worker may restart with another model at any time. Every conversation with it therefore begins with the
question who it is, and its drafts are used only once that one has been compared.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import replace

from suffixsvc.errors import VocabularyMismatchError
from suffixsvc_driver.vocabulary import Vocabulary, check_vocabulary
from suffixsvc_driver.workers.interface import WorkerDescription

__all__ = ["Admission"]

#: restarts remembered
_REMEMBERED = 8


class Admission:
    """What is known of the instances met at one address. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._target: Vocabulary | None = None
        self._met: OrderedDict[str, WorkerDescription | VocabularyMismatchError] = OrderedDict()
        self._last: WorkerDescription | None = None

    @property
    def target(self) -> Vocabulary | None:
        """What instances are compared with; None until somebody says."""
        with self._lock:
            return self._target

    @target.setter
    def target(self, target: Vocabulary) -> None:
        with self._lock:
            if self._target is not target and self._target != target:
                self._target = target
                self._met.clear()

    @property
    def last(self) -> WorkerDescription | None:
        """The instance admitted last."""
        with self._lock:
            return self._last

    def known(self, instance_id: str) -> WorkerDescription | None:
        """An instance that was admitted; None for one not met yet.

        Raises:
            VocabularyMismatchError: it was refused.
        """
        with self._lock:
            found = self._met.get(instance_id)
            if isinstance(found, VocabularyMismatchError):
                raise found.with_traceback(None)
            self._last = found or self._last
            return found

    def compare(self, description: WorkerDescription, vocabulary: Vocabulary, how: str) -> WorkerDescription:
        """Admit an instance if its vocabulary fits.

        Args:
            vocabulary: with its texts, or with the target's fingerprint.
            how: it is compared, in words.

        Raises:
            VocabularyMismatchError: it does not.
        """
        target = self.target
        if target is None:
            raise ValueError("nothing to compare with")
        try:
            check_vocabulary(vocabulary, target)
        except VocabularyMismatchError as err:
            self._remember(description.instance_id, err)
            raise
        self._remember(description.instance_id, replace(description, compared=how))
        return self.known(description.instance_id) or description

    def _remember(self, instance_id: str, outcome: WorkerDescription | VocabularyMismatchError) -> None:
        with self._lock:
            self._met[instance_id] = outcome
            while len(self._met) > _REMEMBERED:
                self._met.popitem(last=False)
