"""Input of the engine: callers, prompts, and plans of answers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from suffixsvc_driver.sampling.settings import GREEDY, Sampling
from suffixsvc_driver.sampling.structured import Structured
from suffixsvc_driver.targets.llama.structured_grammar import StructuredGrammar

#: namespace of callers that name none
DEFAULT_NAME: Final = "default"


@dataclass(frozen=True, slots=True)
class Caller:
    """The sender of a request, and what may be stored of its answers.

    Attributes:
        principal: name that the API key stands for; one component of a path.
        name: the caller's own part of the namespace, one component or more.
        reads: names of the principal's further namespaces to draft from.
        labels: stored with the output.
        store: store the output; otherwise nothing of it may reach what is shared, not even while it is
            written.
        speculate: draft.
        repeated: the client has sent this request before.
    """

    principal: str = "local"
    name: str = DEFAULT_NAME
    reads: tuple[str, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)
    store: bool = True
    speculate: bool = True
    repeated: bool = False


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt, and what binds the answers to it.

    Attributes:
        token_ids: its tokens.
        grammar: what an answer must match; None for any text.
        compiled: the compiled grammar (:meth:`Engine.compile`).
        echo: text that begins every answer; that of the prompt, if anything.
        prediction: tokens of a text that the answers are expected to resemble.
    """

    token_ids: tuple[int, ...]
    grammar: Structured | None = None
    compiled: StructuredGrammar | None = None
    echo: str = ""
    prediction: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Plan:
    """One answer to generate.

    Attributes:
        prompt_ids: at least one token.
        max_tokens: largest number of tokens; None for as many as the context holds.
        stops: texts that end the answer.
        compiled: the grammar of ``sampling``, which stays compiled as long as this object is referenced, so
            that the scheduler does not wait for its compilation.
        echo: text that begins the answer. With log probabilities, those of the prompt are reported too.
        prediction: tokens that are drafted as the answer; without effect if the caller does not speculate.
    """

    prompt_ids: tuple[int, ...]
    max_tokens: int | None = None
    sampling: Sampling = GREEDY
    stops: tuple[str, ...] = ()
    caller: Caller = Caller()
    compiled: StructuredGrammar | None = None
    echo: str = ""
    prediction: tuple[int, ...] = ()

    @property
    def prompt_logprobs(self) -> int | None:
        """Number of most probable tokens to report with each token of the prompt; None: report none."""
        return self.sampling.logprobs if self.echo else None
