"""Requests of the API as pydantic models, and the driver's settings that they stand for.

Types are strict, as OpenAI's are: ``"0.5"`` is not a number. Unknown fields are kept apart and ignored
(:func:`unknown_fields`); fields that would change the answer but are not supported are refused.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

from suffixsvc_driver.sampling.settings import Sampling
from suffixsvc_openai.protocol.errors import invalid, unsupported

#: OpenAI's limit
MAX_STOPS: Final = 4
MAX_STOP_CHARACTERS: Final = 1000
#: choices of one request, over all its prompts
MAX_CHOICES: Final = 64
MAX_METADATA: Final = 16
MAX_BIASES: Final = 1024
#: tokens a completion has by default, as OpenAI's
COMPLETION_TOKENS: Final = 16


class Body(BaseModel):
    """A JSON object whose types are strict and whose unknown fields are ignored."""

    model_config = ConfigDict(strict=True, extra="allow", frozen=True)


def unknown_fields(body: BaseModel) -> list[str]:
    """Return the names of the fields that the model does not know, on its first level."""
    return sorted(body.model_extra or {})


def _as_list(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


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


class Suffixsvc(Body):
    """``suffixsvc``: this server's own options.

    Attributes:
        namespace: the part of the namespace's path that the client chooses.
        reads: further namespaces of the same principal to draft from.
        agent: label of the stored output.
        no_store: do not store the output.
        speculation: draft at all.
    """

    namespace: str | None = None
    reads: Annotated[list[str] | None, Field(max_length=7)] = None
    agent: str | None = None
    no_store: bool = False
    speculation: bool = True


class GenerationRequest(Body):
    """Fields that chat and text completions share."""

    model: str
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: int | None = Field(None, ge=1, le=MAX_CHOICES)
    stop: Annotated[list[str] | None, BeforeValidator(_as_list), AfterValidator(_stops)] = None
    seed: int | None = Field(None, ge=-(2**63), lt=2**63)
    temperature: float | None = Field(None, ge=0, le=2, allow_inf_nan=False)
    top_p: float | None = Field(None, gt=0, le=1)
    top_k: int | None = Field(None, ge=-1)
    min_p: float | None = Field(None, ge=0, le=1)
    frequency_penalty: float | None = Field(None, ge=-2, le=2)
    presence_penalty: float | None = Field(None, ge=-2, le=2)
    repetition_penalty: float | None = Field(None, gt=0, le=10)
    logit_bias: dict[int, Annotated[float, Field(ge=-100, le=100)]] | None = Field(
        None, max_length=MAX_BIASES
    )
    max_tokens: int | None = Field(None, ge=1)
    metadata: dict[str, str] | None = Field(None, max_length=MAX_METADATA)
    user: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    suffixsvc: Suffixsvc = Suffixsvc()

    @property
    def include_usage(self) -> bool:
        """Whether a stream ends with a chunk of usage and metrics."""
        return self.stream_options is not None and bool(self.stream_options.include_usage)

    def sampling(self, seed: int) -> Sampling:
        """Return the driver's settings. A bias of -100 bans a token, as OpenAI describes it.

        Args:
            seed: of this choice.
        """
        bias = {token: float("-inf") if at == -100 else at for token, at in (self.logit_bias or {}).items()}
        return Sampling(
            temperature=1.0 if self.temperature is None else self.temperature,
            top_k=max(0, self.top_k or 0),
            top_p=1.0 if self.top_p is None else self.top_p,
            min_p=self.min_p or 0.0,
            seed=seed,
            repeat_penalty=1.0 if self.repetition_penalty is None else self.repetition_penalty,
            frequency_penalty=self.frequency_penalty or 0.0,
            presence_penalty=self.presence_penalty or 0.0,
            logit_bias=bias,
        )


class CompletionRequest(GenerationRequest):
    """``POST /v1/completions``. ``prompt`` is a text, its tokens, or a list of either."""

    prompt: str | list[str] | list[int] | list[list[int]]
    echo: bool | None = None
    best_of: int | None = None
    logprobs: int | None = None
    suffix: str | None = None

    def check(self) -> None:
        """Refuse what is not supported. Raises ApiError."""
        if self.logprobs is not None:
            raise unsupported("logprobs")
        if self.suffix:
            raise unsupported("suffix")
        if self.best_of is not None and self.best_of != (self.n or 1):
            raise invalid("best_of", "equal n: this server does not rank answers", got=self.best_of)
        if len(self.prompts) * (self.n or 1) > MAX_CHOICES:
            raise invalid(
                "prompt", f"have at most {MAX_CHOICES} texts, times n", got=len(self.prompts) * (self.n or 1)
            )

    @property
    def prompts(self) -> list[str | list[int]]:
        """Each prompt, as a text or tokens. Raises ApiError if there is none."""
        prompt = self.prompt
        if isinstance(prompt, str):
            return [prompt]
        if not prompt:
            raise invalid("prompt", "not be empty")
        if isinstance(prompt[0], int):
            return [[int(token) for token in prompt]]
        return list(prompt)


def _text_of(content: Any) -> Any:
    """Join the text parts of a message's content; other kinds of content are refused."""
    if not isinstance(content, list):
        return content
    texts = []
    for part in content:
        kind = part.get("type") if isinstance(part, dict) else None
        text = part.get("text") if isinstance(part, dict) else None
        if kind == "refusal":
            text = part.get("refusal")
        if kind not in ("text", "refusal") or not isinstance(text, str):
            raise ValueError(f"have parts of type text only: this server has no other input; got {kind!r}")
        texts.append(text)
    return "".join(texts)


class Message(Body):
    """A message of a chat; ``content`` is its text, parts joined."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Annotated[str | None, BeforeValidator(_text_of)] = None
    name: str | None = None
    tool_calls: list[dict[str, Any]] | None = None
    tool_call_id: str | None = None


class ChatRequest(GenerationRequest):
    """``POST /v1/chat/completions``."""

    messages: list[Message] = Field(min_length=1)
    max_completion_tokens: int | None = Field(None, ge=1)
    logprobs: bool | None = None
    top_logprobs: int | None = None
    response_format: dict[str, Any] | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    functions: list[Any] | None = None
    function_call: Any = None
    modalities: list[str] | None = None
    audio: dict[str, Any] | None = None
    web_search_options: dict[str, Any] | None = None
    prediction: dict[str, Any] | None = None  # a hint, which is not used
    reasoning_effort: str | None = None
    verbosity: str | None = None
    service_tier: str | None = None
    store: bool | None = None

    def check(self) -> None:
        """Refuse what is not supported, and messages without content. Raises ApiError."""
        if self.logprobs:
            raise unsupported("logprobs")
        if self.top_logprobs:
            raise unsupported("top_logprobs")
        for name in ("functions", "function_call"):
            if getattr(self, name) is not None:
                raise unsupported(name)
        for name in ("audio", "web_search_options"):
            if getattr(self, name) is not None:
                raise unsupported(name)
        if self.modalities is not None and self.modalities != ["text"]:
            raise invalid("modalities", 'be ["text"]', got=self.modalities)
        for at, message in enumerate(self.messages):
            if message.content is None and not (message.role == "assistant" and message.tool_calls):
                raise invalid(f"messages.{at}.content", "be a text, or parts of type text", got=None)

    @property
    def limit(self) -> int | None:
        """Largest number of tokens to generate; None for as many as the context holds."""
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens
