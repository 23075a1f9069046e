"""Results of vocabulary checks, by worker instance.

A worker may restart with another model at any time. Every channel to it therefore begins with a request for
its instance id, and drafts are used only from instances whose vocabulary passed the check.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import replace

from suffixsvc.errors import VocabularyMismatchError
from suffixsvc_driver.workers.client.interface import WorkerDescription
from suffixsvc_models.vocabulary import MAX_SIZE_DIFFERENCE, Vocabulary, check_vocabulary

#: instances whose results are stored
_MAX_INSTANCES = 8


class VocabularyCheck:
    """Vocabulary checks of the instances at one address. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._results: OrderedDict[str, WorkerDescription | VocabularyMismatchError] = OrderedDict()
        #: the target's vocabulary, with which instances are compared; None until it is set
        self.target: Vocabulary | None = None
        #: the instance that passed last
        self.last: WorkerDescription | None = None

    def set_target(self, target: Vocabulary) -> None:
        """Set the target's vocabulary; results for another one are dropped."""
        with self._lock:
            if self.target != target:
                self.target = target
                self._results.clear()

    def verify(
        self,
        instance_id: str,
        describe: Callable[[], WorkerDescription],
        with_texts: Callable[[Vocabulary], Vocabulary],
    ) -> WorkerDescription:
        """Compare the vocabulary of an instance with the target's, unless that was done before.

        Args:
            describe: returns the instance's description.
            with_texts: fetches the texts of its vocabulary. They are not needed if the fingerprints are equal
                or the size alone differs too much.

        Raises:
            VocabularyMismatchError: it does not match.
        """
        with self._lock:
            found, target = self._results.get(instance_id), self.target
        if found is None:
            found = _compare(describe(), with_texts, target)
            with self._lock:
                self._results[instance_id] = found
                while len(self._results) > _MAX_INSTANCES:
                    self._results.popitem(last=False)
        if isinstance(found, VocabularyMismatchError):
            raise found.with_traceback(None)
        self.last = found
        return found


def _compare(
    description: WorkerDescription, with_texts: Callable[[Vocabulary], Vocabulary], target: Vocabulary | None
) -> WorkerDescription | VocabularyMismatchError:
    if target is None:
        raise ValueError("target must be set")
    vocabulary, how = description.vocabulary, "by its fingerprint"
    near = abs(vocabulary.size - target.size) <= MAX_SIZE_DIFFERENCE
    if near and not (vocabulary.fingerprint and vocabulary.fingerprint == target.fingerprint):
        vocabulary = with_texts(vocabulary)
        how = f"the texts of {len(vocabulary.texts)} ids"
    try:
        check_vocabulary(vocabulary, target)
    except VocabularyMismatchError as err:
        return err
    return replace(description, compared=how)
