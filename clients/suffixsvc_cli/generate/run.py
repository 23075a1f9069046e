"""Execution of ``suffixsvc generate``: one prompt, or the turns of a chat."""

from __future__ import annotations

import json
import logging
import os
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from typing import Final

from rich.console import Console

from suffixsvc.errors import InvalidConfigError, ModelError
from suffixsvc.runtime.stop_signals import StopSignals, stop_on_signals
from suffixsvc_cli.base.logs import log_to_stderr
from suffixsvc_cli.generate.explain import INTRODUCTION, Explainer
from suffixsvc_cli.generate.options import Options, checked_text
from suffixsvc_cli.generate.setup import GenerateSetup, set_up
from suffixsvc_cli.generate.show import TextView, choose_style
from suffixsvc_cli.generate.stats import one_line, print_statistics
from suffixsvc_cli.generate.turn import FORMAT, Totals, Turn
from suffixsvc_driver.decode.chat_session import ChatSession, prompt_tokens
from suffixsvc_driver.decode.detokenize_stream import DetokenizeStream, Piece, StopStrings
from suffixsvc_driver.decode.loop import StepRecord, generate
from suffixsvc_driver.settings.driver_config import Policy

_PROMPT: Final = "> "
_COMMANDS: Final = "/quit ends the chat, /stats shows statistics; other lines go to the model"


def run(options: Options) -> None:
    """Generate, print, end in order.

    Raises:
        SuffixError: an option is invalid or a resource is missing.
        KeyboardInterrupt: the text was interrupted.
    """
    with stop_on_signals() as signals, ExitStack() as stack:
        console = Console(stderr=True, highlight=False)
        log_to_stderr(logging.WARNING)  # only warnings of the driver, beside the model's text

        def notify(text: str) -> None:
            console.print(text, markup=False, soft_wrap=True)

        first = options.first_prompt()
        session = _Session(options, set_up(options, notify, stack), signals, console)
        try:
            session.all_turns(first)
        except BrokenPipeError:  # the reader of stdout closed the pipe
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        finally:
            session.statistics()


class _Session:
    """A run of the verb, from the first prompt to the statistics."""

    def __init__(
        self, options: Options, setup: GenerateSetup, signals: StopSignals, console: Console
    ) -> None:
        self._options, self._setup, self._signals, self._console = options, setup, signals, console
        self._style = choose_style(colour=options.colour, marks=options.marks)
        self._view = TextView(self._style)
        self._totals = Totals(setup.live, measured=setup.measured)
        self._turns_shown = 0  # number of turns when statistics were last shown

    def all_turns(self, first: str | None) -> None:
        """Run one turn, or those of a chat.

        Args:
            first: the first prompt; None if it comes from the terminal.
        """
        options = self._options
        if not options.as_json:
            if self._view.legend():
                sys.stderr.write(f"drafted by: {self._view.legend()}\n")
            if options.explain:
                self._print(f"{INTRODUCTION}\n")
        model = self._setup.target.model
        if options.raw:
            message = first or ""
            self._turn(message, prompt_tokens(model, message))
            return
        conversation = ChatSession(model, options.system)
        for message in self._user_messages(first):
            turn = self._turn(message, self._prompt_ids(conversation, message))
            conversation.add_assistant(turn.result.token_ids, turn.text, cut=bool(turn.stopped_at))
            if self._signals.received:
                return

    def _user_messages(self, first: str | None) -> Iterator[str]:
        """Yield the user's turns."""
        if first is not None:
            yield first
        if not self._options.chat:
            return
        terminal = sys.stdin.isatty()
        if terminal:
            self._console.print(_COMMANDS, markup=False)
            with suppress(ImportError):
                import readline  # noqa: F401  # line editing and history
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

    def _prompt_ids(self, conversation: ChatSession, message: str) -> list[int]:
        try:
            return conversation.add_user(message)
        except ModelError as error:
            raise error.with_remedy("Write the prompt in the model's own format, with --raw.") from None

    def _turn(self, message: str, prompt_ids: list[int]) -> Turn:
        """Generate after a prompt, and print the text meanwhile."""
        setup, options = self._setup, self._options
        target, model = setup.target, setup.target.model
        before = time.perf_counter()
        prefill = target.begin(prompt_ids)
        prefill_seconds = time.perf_counter() - before
        layers = setup.layers(None if setup.memory is None else setup.memory.begin(prompt_ids))
        stops = StopStrings(options.stop, model.token_bytes)
        written = DetokenizeStream(model.token_bytes, target.eog_ids, options.stop)
        explainer = Explainer(
            model.token_bytes,
            [layer.spec.name for layer in layers],
            prompt_ids,
            replays=target.replays,
            first_match=setup.config.policy is Policy.FIRST_MATCH,
        )
        pending: list[Piece] = []  # printed when the text is complete

        def on_step(step: StepRecord) -> None:
            pieces = written.add(step.emitted, step.sources)
            if options.explain:
                pending.extend(pieces)
                self._print(explainer.step(step, setup.live.curve) + "\n")
            elif not options.as_json:
                self._view.write(pieces)

        with self._signals.deferred():
            result = generate(
                target,
                prompt_ids,
                setup.config,
                layers,
                options.max_tokens,
                sampling=setup.settings.sampling,
                curve=setup.live,
                calibrator=setup.calibrator,
                stop=lambda tokens: stops(tokens) or self._signals.received,
                content=setup.content,
                on_step=on_step,
            )
            if setup.memory is not None:
                setup.memory.record_output(result.token_ids)
            pending += written.finish()
            interrupted = self._signals.received
        turn = Turn(result, prefill, prefill_seconds, written.text, written.stopped_at, interrupted)
        self._totals.add(turn)
        if options.as_json:
            plain = {"format": FORMAT, **setup.to_dict(), "prompt": message, **turn.to_dict()}
            print(json.dumps(plain), flush=True)  # ASCII: works with any encoding of stdout
        else:
            self._view.write(pending)
            self._view.end()
            if options.chat and not interrupted:
                alone = Totals(setup.live, measured=setup.measured)
                alone.add(turn)
                self._console.print(f"({one_line(alone)})", style="dim", markup=False)
        return turn

    def _print(self, text: str) -> None:
        sys.stdout.write(text)
        sys.stdout.flush()

    def statistics(self, *, again: bool = False) -> None:
        """Print statistics, unless nothing was written since the last time.

        Args:
            again: print them anyway.
        """
        if (
            not self._totals.turns
            or self._options.as_json
            or (self._turns_shown == self._totals.turns and not again)
        ):
            return
        self._turns_shown = self._totals.turns
        self._console.print()
        print_statistics(self._console, self._totals, self._style)


def _line(terminal: bool) -> str | None:
    """The next line of input; None at its end.

    Raises:
        InvalidConfigError: it is not UTF-8.
    """
    try:
        if terminal and sys.stdout.isatty():
            return checked_text(input(_PROMPT), "a turn")
        if terminal:  # stdout is for the text
            sys.stderr.write(_PROMPT)
            sys.stderr.flush()
        line = sys.stdin.readline()
    except EOFError:
        return None
    except UnicodeDecodeError as error:
        raise InvalidConfigError("a turn must be UTF-8", got=f"byte {error.start}") from None
    return checked_text(line.removesuffix("\n"), "a turn") if line else None
