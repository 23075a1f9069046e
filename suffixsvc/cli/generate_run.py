"""``suffixsvc generate`` behind its options: turns of a chat, or one prompt."""

from __future__ import annotations

import json
import logging
import os
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from typing import Any, Final

import typer
from rich.console import Console
from suffixsvc_driver.config import Policy
from suffixsvc_driver.conversation import Conversation, prompt_tokens
from suffixsvc_driver.loop import StepRecord
from suffixsvc_driver.loop import generate as write
from suffixsvc_driver.written_text import Piece, StopTexts, WrittenText

from suffixsvc.cli.generate_explain import INTRODUCTION, Explainer
from suffixsvc.cli.generate_options import Options, checked_text
from suffixsvc.cli.generate_rig import Rig, set_up
from suffixsvc.cli.generate_show import TextView, choose_style
from suffixsvc.cli.generate_stats import one_line, print_statistics
from suffixsvc.cli.generate_stop import Interrupts
from suffixsvc.cli.generate_turn import FORMAT, Totals, Turn
from suffixsvc.cli.logs import log_to_stderr
from suffixsvc.errors import InvalidConfigError, ModelError

__all__ = ["run"]

_PROMPT: Final = "> "
_COMMANDS: Final = "/quit ends the chat, /stats shows statistics; every other line goes to the model"
#: exit code after Ctrl-C
_INTERRUPTED: Final = 130


def run(options: Options) -> None:
    """Write, show, end in order.

    Raises:
        SuffixError: what was asked for cannot be had.
        typer.Exit: the text was interrupted.
    """
    interrupts = Interrupts()
    with interrupts.watched(), ExitStack() as stack:
        console = Console(stderr=True, highlight=False)
        log_to_stderr(logging.WARNING)  # warnings of the driver, beside the model's text

        def say(text: str) -> None:
            console.print(text, markup=False, soft_wrap=True)

        first = options.first_prompt()
        session = _Session(options, set_up(options, say, stack), interrupts, console)
        try:
            session.all_turns(first)
        except BrokenPipeError:  # whoever read stdout has seen enough
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        finally:
            session.statistics()
    if interrupts.came:
        raise typer.Exit(_INTERRUPTED)


class _Session:
    """From the first prompt to the last word."""

    def __init__(self, options: Options, rig: Rig, interrupts: Interrupts, console: Console) -> None:
        self._options, self._rig, self._interrupts, self._console = options, rig, interrupts, console
        self._style = choose_style(colour=options.colour, marks=options.marks)
        self._view = TextView(self._style)
        self._totals = Totals(rig.live, measured=rig.measured)
        self._told = 0  # turns when statistics were last shown

    def all_turns(self, first: str | None) -> None:
        """One, or those of a chat.

        Args:
            first: the first prompt; None where it comes from the terminal.
        """
        options = self._options
        if not options.as_json:
            if self._view.legend():
                sys.stderr.write(f"drafted by: {self._view.legend()}\n")
            if options.explain:
                self._print(f"{INTRODUCTION}\n")
        model = self._rig.target.model
        if options.raw:
            words = first or ""
            self._turn(words, prompt_tokens(model, words))
            return
        conversation = Conversation(model, options.system)
        for words in self._user(first):
            turn = self._turn(words, self._asked(conversation, words))
            conversation.answered(turn.result.token_ids, turn.text, cut=bool(turn.stopped_at))
            if self._interrupts.came:
                return

    def _user(self, first: str | None) -> Iterator[str]:
        """What the user says, turn by turn."""
        if first is not None:
            yield first
        if not self._options.chat:
            return
        terminal = sys.stdin.isatty()
        if terminal:
            self._console.print(_COMMANDS, markup=False)
            with suppress(ImportError):
                import readline  # noqa: F401  # lines can be edited and come back
        while (line := _line(terminal)) is not None:
            match line.strip():
                case "":
                    continue
                case "/quit":
                    return
                case "/stats":
                    self.statistics(again=True)
                case _:
                    yield line

    def _asked(self, conversation: Conversation, words: str) -> list[int]:
        try:
            return conversation.ask(words)
        except ModelError as error:
            raise ModelError(
                error.message,
                expected=error.expected,
                got=error.got,
                remedy="Write the prompt as the model knows it, and say --raw.",
            ) from None

    def _turn(self, words: str, prompt_ids: list[int]) -> Turn:
        """Write behind a prompt, and show it meanwhile."""
        rig, options = self._rig, self._options
        target, model = rig.target, rig.target.model
        before = time.perf_counter()
        prefill = target.begin(prompt_ids)
        prefill_seconds = time.perf_counter() - before
        layers = rig.layers(None if rig.memory is None else rig.memory.begin(prompt_ids))
        stops = StopTexts(options.stop, model.token_bytes)
        written = WrittenText(model.token_bytes, target.eog_ids, options.stop)
        explainer = self._explainer(prompt_ids, [layer.spec.name for layer in layers])
        held: list[Piece] = []  # what is shown once the text is complete

        def on_step(step: StepRecord) -> None:
            kept = min(step.accepted, len(step.emitted))
            sources = (*step.sources[:kept], *[0] * (len(step.emitted) - kept))
            pieces = written.add(step.emitted, sources)
            if options.explain:
                held.extend(pieces)
                self._print(explainer.step(step, rig.live.curve) + "\n")
            elif not options.as_json:
                self._view.write(pieces)

        with self._interrupts.writing():
            result = write(
                target,
                prompt_ids,
                rig.config,
                layers,
                options.max_tokens,
                sampling=rig.settings.sampling,
                curve=rig.live,
                trust=rig.trust,
                stop=lambda tokens: stops(tokens) or self._interrupts.came,
                content=rig.content,
                on_step=on_step,
            )
            if rig.memory is not None:
                rig.memory.wrote(result.token_ids)
            held += written.finish()
            interrupted = self._interrupts.came
        turn = Turn(result, prefill, prefill_seconds, written.text, written.stopped_at, interrupted)
        self._totals.add(turn)
        if options.as_json:
            print(json.dumps(self._as_plain(words, turn)), flush=True)  # ASCII: any stdout takes it
        else:
            self._view.write(held)
            self._view.end()
            if options.chat and not interrupted:
                self._say_of(turn)
        return turn

    def _explainer(self, prompt_ids: list[int], layers: list[str]) -> Explainer:
        return Explainer(
            self._rig.target.model.token_bytes,
            layers,
            prompt_ids,
            replays=self._rig.target.replays,
            first_match=self._rig.config.policy is Policy.FIRST_MATCH,
        )

    def _as_plain(self, words: str, turn: Turn) -> dict[str, Any]:
        return {"format": FORMAT, **self._rig.as_plain(), "prompt": words, **turn.as_plain()}

    def _say_of(self, turn: Turn) -> None:
        alone = Totals(self._rig.live, measured=self._rig.measured)
        alone.add(turn)
        self._console.print(f"({one_line(alone)})", style="dim", markup=False)

    def _print(self, text: str) -> None:
        sys.stdout.write(text)
        sys.stdout.flush()

    def statistics(self, *, again: bool = False) -> None:
        """Show them, unless nothing was written since the last time.

        Args:
            again: show them anyway.
        """
        if (
            not self._totals.turns
            or self._options.as_json
            or (self._told == self._totals.turns and not again)
        ):
            return
        self._told = self._totals.turns
        self._console.print()
        print_statistics(self._console, self._totals, self._style)


def _line(terminal: bool) -> str | None:
    """The next line of input; None at its end.

    Raises:
        InvalidConfigError: it is no text.
    """
    try:
        if terminal and sys.stdout.isatty():
            return checked_text(input(_PROMPT), "a turn")
        if terminal:  # stdout is the text's
            sys.stderr.write(_PROMPT)
            sys.stderr.flush()
        line = sys.stdin.readline()
    except EOFError:
        return None
    except UnicodeDecodeError as error:
        raise InvalidConfigError("a turn is no text", expected="UTF-8", got=f"byte {error.start}") from None
    return checked_text(line.removesuffix("\n"), "a turn") if line else None
