"""``POST /v1/completions`` as a pydantic model."""

from __future__ import annotations

from typing import Annotated, Any, Final

from pydantic import Field, ValidationError, ValidatorFunctionWrapHandler, WrapValidator

from suffixsvc_openai.protocol.errors import invalid
from suffixsvc_openai.protocol.generation_request import MAX_CHOICES, GenerationRequest, Items

#: tokens a completion has by default, as OpenAI's
COMPLETION_TOKENS: Final = 16
#: OpenAI's limit of logprobs
MAX_LOGPROBS: Final = 5


def _prompt(value: Any, validate: ValidatorFunctionWrapHandler) -> Any:
    try:
        return validate(value)
    except ValidationError:  # one error for each form
        raise ValueError("be a text, its tokens, or a list of either") from None


class CompletionRequest(GenerationRequest):
    """``POST /v1/completions``. ``prompt`` is a text, its tokens, or a list of either."""

    prompt: Annotated[str | Items[str] | Items[int] | Items[Items[int]], WrapValidator(_prompt)]
    max_tokens: int | None = Field(None, ge=0)
    echo: bool | None = None
    best_of: int | None = None
    logprobs: int | None = Field(None, ge=0, le=MAX_LOGPROBS)
    suffix: str | None = None

    def check(self) -> None:
        """Refuse what is not supported. Raises ApiError."""
        self.check_stream()
        if self.suffix and self.echo and self.logprobs is not None:
            raise invalid("logprobs", "be null with suffix and echo", got=self.logprobs)
        if self.best_of is not None and self.best_of != (self.n or 1):
            raise invalid("best_of", "equal n: this server does not rank answers", got=self.best_of)
        if len(self.prompts) * (self.n or 1) > MAX_CHOICES:
            raise invalid(
                "prompt", f"have at most {MAX_CHOICES} texts, times n", got=len(self.prompts) * (self.n or 1)
            )

    @property
    def top_count(self) -> int | None:
        """See the base class."""
        return self.logprobs

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
