"""Results of vocabulary checks, by worker instance.

A worker may restart with another model at any time. Every channel to it therefore begins with a request for
its instance id, and drafts are used only from instances whose vocabulary passed the check.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import replace

from suffixsvc.errors import VocabularyMismatchError
from suffixsvc_driver.workers.client.interface import WorkerDescription
from suffixsvc_models.vocabulary import Vocabulary, check_vocabulary

__all__ = ["VocabularyCheck"]

#: instances whose results are stored
_MAX_INSTANCES = 8


class VocabularyCheck:
    """Vocabulary checks of the instances at one address. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._target: Vocabulary | None = None
        self._results: OrderedDict[str, WorkerDescription | VocabularyMismatchError] = OrderedDict()
        self._last: WorkerDescription | None = None

    @property
    def target(self) -> Vocabulary | None:
        """The target's vocabulary, with which instances are compared; None until it is set."""
        with self._lock:
            return self._target

    @target.setter
    def target(self, target: Vocabulary) -> None:
        with self._lock:
            if self._target is not target and self._target != target:
                self._target = target
                self._results.clear()

    @property
    def last(self) -> WorkerDescription | None:
        """The instance that passed last."""
        with self._lock:
            return self._last

    def known(self, instance_id: str) -> WorkerDescription | None:
        """Return the description of an instance that passed; None if it was not checked yet.

        Raises:
            VocabularyMismatchError: it failed the check.
        """
        with self._lock:
            found = self._results.get(instance_id)
            if isinstance(found, VocabularyMismatchError):
                raise found.with_traceback(None)
            self._last = found or self._last
            return found

    def compare(self, description: WorkerDescription, vocabulary: Vocabulary, how: str) -> WorkerDescription:
        """Check the vocabulary of an instance and store the result.

        Args:
            vocabulary: with its texts, or with the target's fingerprint.
            how: what is compared, for :attr:`WorkerDescription.compared`.

        Raises:
            VocabularyMismatchError: it does not match.
        """
        target = self.target
        if target is None:
            raise ValueError("target must be set")
        try:
            check_vocabulary(vocabulary, target)
        except VocabularyMismatchError as err:
            self._store(description.instance_id, err)
            raise
        self._store(description.instance_id, replace(description, compared=how))
        return self.known(description.instance_id) or description

    def _store(self, instance_id: str, result: WorkerDescription | VocabularyMismatchError) -> None:
        with self._lock:
            self._results[instance_id] = result
            while len(self._results) > _MAX_INSTANCES:
                self._results.popitem(last=False)
