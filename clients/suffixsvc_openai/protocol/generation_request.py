"""Fields that requests share, as pydantic models, and the driver's settings that they stand for.

Types are strict, as OpenAI's are: ``"0.5"`` is not a number. Unknown fields are kept apart and ignored
(:func:`unknown_fields`); fields that would change the answer but are not supported are refused.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, TypeVar

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

from suffixsvc_driver.sampling.settings import Sampling
from suffixsvc_openai.protocol.errors import invalid

#: OpenAI's limit
MAX_STOPS: Final = 4
MAX_STOP_CHARACTERS: Final = 1000
#: choices of one request, over all its prompts
MAX_CHOICES: Final = 64
MAX_METADATA: Final = 16
MAX_METADATA_NAME: Final = 64
MAX_METADATA_TEXT: Final = 512
#: messages of a chat, or items of an input
MAX_MESSAGES: Final = 16_384
MAX_TOOLS: Final = 1024
#: stands for a top_p of 0: both keep the most probable token
_LEAST: Final = 1e-9
MAX_BIASES: Final = 1024
#: bias that bans a token, as OpenAI describes it
BANNED: Final = -100
#: below it a temperature is 0 to the driver, which divides by it
_LEAST_TEMPERATURE: Final = 1e-30

T = TypeVar("T")

#: a list whose first invalid element is the only error: an error for each of a million elements would take
#: gigabytes, and seconds in which no other request is answered
Items = Annotated[list[T], Field(fail_fast=True)]


class Body(BaseModel):
    """A JSON object whose types are strict and whose unknown fields are ignored."""

    model_config = ConfigDict(strict=True, extra="allow", frozen=True)


def unknown_fields(body: BaseModel) -> list[str]:
    """Return the names of the fields that the model does not know, on its first level."""
    return sorted(body.model_extra or {})


#: names of fields are texts, of which strict validation makes no numbers
_TokenId = Annotated[int, Field(strict=False)]


def _as_list(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


def _at_most(limit: int) -> BeforeValidator:
    """Refuse an object with more fields before each of them is checked, which may be an error for each."""

    def check(value: Any) -> Any:
        if isinstance(value, dict) and len(value) > limit:
            raise ValueError(f"have at most {limit} fields")
        return value

    return BeforeValidator(check)


def _stops(texts: list[str] | None) -> list[str] | None:
    if texts is not None and len(texts) > MAX_STOPS:
        raise ValueError(f"have at most {MAX_STOPS} strings")
    for text in texts or ():
        if not 0 < len(text) <= MAX_STOP_CHARACTERS:
            raise ValueError(f"be strings of 1 to {MAX_STOP_CHARACTERS} characters")
    return texts


class StreamOptions(Body):
    """``stream_options``."""

    include_usage: bool | None = None


class Suffixsvc(BaseModel):
    """``suffixsvc``: this server's own options, of which unknown ones are refused: a misspelt namespace would
    mix projects.

    Attributes:
        namespace: the part of the namespace's path that the client chooses.
        reads: further namespaces of the same principal to draft from.
        agent: label of the stored output.
        no_store: do not store the output.
        speculation: draft at all.
    """

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

    namespace: str | None = None
    reads: Annotated[Items[str] | None, Field(max_length=7)] = None
    agent: str | None = None
    no_store: bool = False
    speculation: bool = True


def _or_defaults(value: Any) -> Any:
    return Suffixsvc() if value is None else value


class GenerationRequest(Body):
    """Fields that chat and text completions share."""

    model: str
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: int | None = Field(None, ge=1, le=MAX_CHOICES)
    stop: Annotated[Items[str] | None, BeforeValidator(_as_list), AfterValidator(_stops)] = None
    seed: int | None = Field(None, ge=-(2**63), lt=2**63)
    temperature: float | None = Field(None, ge=0, le=2, allow_inf_nan=False)
    top_p: float | None = Field(None, ge=0, le=1)
    top_k: int | None = Field(None, ge=-1)
    min_p: float | None = Field(None, ge=0, le=1)
    frequency_penalty: float | None = Field(None, ge=-2, le=2)
    presence_penalty: float | None = Field(None, ge=-2, le=2)
    repetition_penalty: float | None = Field(None, ge=1e-6, le=10)
    logit_bias: Annotated[
        dict[_TokenId, Annotated[float, Field(ge=-100, le=100)]] | None, _at_most(MAX_BIASES)
    ] = None
    max_tokens: int | None = Field(None, ge=1)
    metadata: Annotated[
        dict[
            Annotated[str, Field(max_length=MAX_METADATA_NAME)],
            Annotated[str, Field(max_length=MAX_METADATA_TEXT)],
        ]
        | None,
        _at_most(MAX_METADATA),
    ] = None
    user: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    suffixsvc: Annotated[Suffixsvc, BeforeValidator(_or_defaults)] = Suffixsvc()

    @property
    def include_usage(self) -> bool:
        """Whether a stream ends with a chunk of usage and metrics."""
        return self.stream_options is not None and bool(self.stream_options.include_usage)

    def check_stream(self) -> None:
        """Refuse options of a stream without one, as OpenAI's API does. Raises ApiError."""
        if self.stream_options is not None and not self.stream:
            raise invalid("stream_options", "be null unless stream is true")

    @property
    def top_count(self) -> int | None:
        """Number of most probable tokens to report with each token's log probability; None: report none."""
        return None

    def sampling(self, seed: int) -> Sampling:
        """Return the driver's settings. A bias of :data:`BANNED` is minus infinity.

        Args:
            seed: of this choice.
        """
        temperature = 1.0 if self.temperature is None else self.temperature
        bias = {token: float("-inf") if at == BANNED else at for token, at in (self.logit_bias or {}).items()}
        return Sampling(
            temperature=0.0 if temperature < _LEAST_TEMPERATURE else temperature,
            top_k=max(0, self.top_k or 0),
            top_p=1.0 if self.top_p is None else max(self.top_p, _LEAST),
            min_p=self.min_p or 0.0,
            seed=seed,
            repeat_penalty=1.0 if self.repetition_penalty is None else self.repetition_penalty,
            frequency_penalty=self.frequency_penalty or 0.0,
            presence_penalty=self.presence_penalty or 0.0,
            logit_bias=bias,
            logprobs=self.top_count,
        )
