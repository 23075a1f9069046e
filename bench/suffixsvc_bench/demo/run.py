"""The stages of the demo in order. Each method of :class:`Demo` is one stage."""

from __future__ import annotations

import itertools
import math
import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.markup import escape

from suffixsvc.runtime.stop_signals import stop_on_signals
from suffixsvc_bench.demo import agents, database, report, show
from suffixsvc_bench.demo.agent_runner import Answer, Record, recorder
from suffixsvc_bench.demo.endpoint import request_line, server_line
from suffixsvc_bench.demo.fixture import DemoFixture
from suffixsvc_bench.demo.options import DemoOptions
from suffixsvc_bench.demo.pipeline import Call, answer_question
from suffixsvc_bench.demo.questions import AFTER_RESTART, FIRST_MATCH, FIRST_PASS, LIVE, SECOND_PASS, Question
from suffixsvc_bench.demo.setup import ModelSelection, choose_models
from suffixsvc_bench.demo.two_processes import NAMES, STEPS_PER_DRAFTED_TOKEN, write_together
from suffixsvc_bench.report.output import require_file_path
from suffixsvc_bench.speculation.paired import Interval, Outcome, Pair, median_ratio
from suffixsvc_driver.decode.exactness import Exactness, check_exactness
from suffixsvc_driver.settings.driver_config import DriverConfig, Policy
from suffixsvc_driver.targets.llama.machine import usable_cores

#: calls of the second pass that are checked for exactness, evenly spread; quick: only the first
CHECKED_CALLS: Final = 3
#: time budget of the demo, quick or not; to stay within it on slower machines, only every n-th call is
#: compared with plain decoding
SECONDS: Final = {False: 570.0, True: 190.0}
#: duration of the stages after the second pass, relative to the first pass
REST_OF_PASSES: Final = 0.6
#: least time for comparisons, quick or not
MIN_COMPARING_SECONDS: Final = {False: 45.0, True: 20.0}
#: costs of a drafted token under first-match, tried until every layer had tokens accepted: with a low cost
#: the first layers draft long, a higher one leaves steps to the draft model
FIRST_MATCH_COSTS: Final = (0.05, 0.2)
LOG_WIDTH: Final = 110


def run_demo(options: DemoOptions, download: Callable[[str], Path]) -> int:
    """Run the demo.

    Args:
        options: see :class:`DemoOptions`.
        download: downloads a model of the registry and returns its file.

    Returns:
        The exit code: 1 if a check failed on this machine, else 0.

    Raises:
        InvalidConfigError: contradicting options, or a file that cannot be written.
    """
    console = Console(highlight=False)
    if not console.is_terminal:  # a log file has no window width
        console = Console(highlight=False, width=LOG_WIDTH)
    require_file_path(options.report, "--report")
    require_file_path(options.record, "--record")
    chosen = choose_models(
        small=options.small,
        target=options.target,
        draft=options.draft,
        download=download,
        notify=lambda text: console.print(f"[yellow]{escape(text)}[/yellow]"),
    )
    began = time.monotonic()  # after the downloads
    folder = Path(tempfile.mkdtemp(prefix="suffixsvc-demo-"))
    try:
        with stop_on_signals() as signals, ExitStack() as stack:
            threads = options.threads or usable_cores()
            show.heading(console, f"Setting up: {chosen.name} on {threads} threads")
            shop = folder / "shop.sqlite"
            database.create(shop)
            console.print("a SQLite shop: customers, products, orders (the same rows every time)")
            fixture = DemoFixture(chosen, folder, threads, options, console, stack)
            fixture.runner.speculator.on_step = lambda _: signals.check()
            fixture.check = signals.check
            record = recorder(options.record, model=chosen.name, tokenizer=fixture.fingerprint)
            with record as write:
                demo = Demo(options, chosen, shop, console, fixture, began, write)
                first, second, restarted = demo.run_recorded_stages()
            if options.record is not None:
                console.print(f"every call recorded: {options.record}", markup=False)
            return demo.conclude(first, second, restarted)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@dataclass
class Demo:
    """A run of the demo: its stages and their results."""

    options: DemoOptions
    chosen: ModelSelection
    shop: Path
    console: Console
    fixture: DemoFixture
    began: float  #: time.monotonic() when the demo started
    record: Record
    pairs: list[Pair] = field(default_factory=list)
    speedup: Interval | None = None
    live_facts: list[tuple[str, str]] = field(default_factory=list)
    sections: list[report.Section] = field(default_factory=list)
    failed_checks: list[str] = field(default_factory=list)

    def run_recorded_stages(self) -> tuple[list[Answer], list[Answer], list[Answer]]:
        """Run both passes and the crash; return their answers."""
        before = time.monotonic()
        first = self._first_pass()
        second = self._second_pass(first, time.monotonic() - before)
        self._compare(first, second)
        return first, second, self._restart(second[-1])

    def conclude(self, first: list[Answer], second: list[Answer], restarted: list[Answer]) -> int:
        """Run the other stages and write the report; return the exit code."""
        checked = second[:: max(1, len(second) // CHECKED_CALLS)][:CHECKED_CALLS]
        if self.chosen.draft is not None:
            checked.append(self._first_match()[-1])
        exactness = self._exactness(checked[:1] if self.options.quick else checked)
        exactness += self._two_processes()
        self._write_report(first, second, restarted, exactness)
        self.console.print(f"\nDone in {(time.monotonic() - self.began) / 60:.1f} minutes.")
        for check in self.failed_checks:
            self.console.print(f"[red]Failed on this machine: {escape(check)}[/red]")
        self.console.print("\nServe this model to agent frameworks, which change only their base_url:\n")
        for line in (server_line(self.chosen.target), request_line(self.chosen.target)):
            self.console.print(f"    {line}", markup=False, soft_wrap=True)  # to be copied
        self.console.print(
            "\nRun the second one in another terminal, twice: of the second answer, "
            "metrics.speculative_decoding.tokens_by_source counts what memory drafted as suffix."
        )
        return 1 if self.failed_checks else 0

    def _check(self, holds: bool, what: str) -> None:
        if not holds:
            self.failed_checks.append(what)

    def _section(
        self, title: str, explained: str, answers: list[Answer], facts: Sequence[tuple[str, str]] = ()
    ) -> list[Answer]:
        """Add the answers of a stage to the report, and return them."""
        self.sections.append(report.Section(title, explained, answers, facts))
        return answers

    # --------------------------------------------------------------------------------------------- the passes

    def _first_pass(self) -> list[Answer]:
        questions = FIRST_PASS[: self.options.questions_per_pass]
        show.heading(self.console, f"First pass: {len(questions)} questions, the service is empty")
        if self.chosen.draft is None and self.options.target is None:
            self.console.print(
                "(a model this small writes poor SQL and JSON; the origins of its tokens matter here)"
            )
        answers = self._answer_all(questions, self.fixture.runner.drafted, 1)
        self.console.print(show.layer_table("Per layer, first pass", answers))
        return self._section(
            "First pass", "The service starts empty and indexes what the agents write.", answers
        )

    def _second_pass(self, first: list[Answer], first_pass_seconds: float) -> list[Answer]:
        questions = SECOND_PASS[: self.options.questions_per_pass]
        show.heading(
            self.console,
            f"Second pass: {len(questions)} other questions of the same kind, first pass indexed",
        )
        every, both_sides = self._sample(first, first_pass_seconds)
        which = "every call" if every == 1 else f"one call in {every} (all would exceed the time budget)"
        order = "plain before and after it" if both_sides else "plain before or after it, alternating"
        self.console.print(f"{which} runs once with drafts, and {order}")
        numbers = itertools.count()
        runner = self.fixture.runner

        def generate(call: Call) -> Answer:
            number = next(numbers)
            if number % every:
                return runner.drafted(call)
            before = both_sides or number // every % 2 == 1
            plain = [runner.plain(call).outcome] if before else []
            answer = runner.drafted(call)
            if both_sides or not before:
                plain.append(runner.plain(call).outcome)
            self.pairs.append(Pair(call.name, call.agent.name, answer.outcome, Outcome.sum(plain)))
            return answer

        answers = self._answer_all(questions, generate, 2)
        return self._section("Second pass", "The outputs of the first pass can be drafted now.", answers)

    def _sample(self, first: list[Answer], first_pass_seconds: float) -> tuple[int, bool]:
        """Choose which calls of the second pass are compared, by the duration of the first pass.

        Returns:
            n for "every n-th call", and whether there is a plain run on both sides of it. If time is short,
            twice as many calls with one plain run each are more informative.
        """
        plain = sum(len(a.result.token_ids) for a in first) * self.fixture.curve.seconds_per_step
        passed = time.monotonic() - self.began
        left = SECONDS[self.options.quick] - passed - (1 + REST_OF_PASSES) * first_pass_seconds
        left = max(left, MIN_COMPARING_SECONDS[self.options.quick])
        every = 1 if 2 * plain <= left else math.ceil(plain / left)
        every |= 1  # odd: an even step would always select the same two of the four agents
        return every, 2 * plain <= left * every

    def _answer_all(
        self, questions: Sequence[Question], generate: Callable[[Call], Answer], pass_number: int | None
    ) -> list[Answer]:
        """Run questions through the agents with a progress bar; record the answers of a numbered pass."""
        answers: list[Answer] = []
        with show.progress(self.console) as bar:
            task = bar.add_task("", total=len(questions))

            def one_call(call: Call) -> str:
                bar.update(task, description=f"{call.question.key}: {call.agent.name} writes")
                answers.append(generate(call))
                if pass_number is not None:
                    self.record(answers[-1], pass_number)
                return answers[-1].text

            for question in questions:
                before = len(answers)
                outcome = answer_question(question, one_call, self.shop)
                show.print_outcome(bar.console, outcome, answers[before:])
                bar.advance(task)
        return answers

    def _compare(self, first: list[Answer], second: list[Answer]) -> None:
        self.console.print(show.layer_table("Per layer, second pass", second))
        self.console.print(show.agent_table(self.pairs, second))
        self.speedup = median_ratio(self.pairs)
        before, after = show.suffix_share(first), show.suffix_share(second)
        self.console.print(
            f"speed-up over plain decoding, median of paired calls: [bold]{self.speedup}[/bold]"
        )
        self.console.print(
            f"tokens drafted from another call's output (suffix share): first pass {before:.1%}, "
            f"second pass [bold]{after:.1%}[/bold]"
        )
        faster = self.speedup is not None and self.speedup.median > 1.0
        self._check(faster, "the second pass is faster than plain decoding")
        self._check(after > before, "the second pass drafts more from the service than the first")

    # ----------------------------------------------------------------------------------------- after a crash

    def _restart(self, earlier: Answer) -> list[Answer]:
        show.heading(self.console, "A crash: the service is killed (SIGKILL) and started again")
        before = self.fixture.client.stats()
        self.fixture.service.kill()
        began = time.monotonic()
        self.fixture.start_service()
        took = time.monotonic() - began
        text = earlier.result
        after, right = self.fixture.recover(text.prompt_ids, text.token_ids)
        self.console.print(
            f"outputs before {before.outputs}, after {after.outputs}; tokens before {before.tokens}, after "
            f"{after.tokens}; answering again after {took:.1f} s, as process {self.fixture.service.pid}"
        )
        self.console.print(
            f"the last answer before the crash, replayed: "
            f"the service drafts [bold]{right}[/bold] of its {len(text.token_ids)} tokens"
        )
        if self.options.quick:  # only the planner's call
            call = Call(agents.PLANNER, AFTER_RESTART, 0, agents.plan_prompt(AFTER_RESTART.text))
            answers = [self.fixture.runner.drafted(call)]
            self.record(answers[0], 3)
            self.console.print(f"the planner, on a new question: {answers[0].text}", markup=False)
        else:
            answers = self._answer_all([AFTER_RESTART], self.fixture.runner.drafted, 3)
        # later calls can also draft what the first one wrote after the restart
        accepted = show.total(answers[:1]).evidence.get("suffix")
        self.console.print(
            f"accepted tokens of the first new call from outputs before the crash: "
            f"{accepted.accepted if accepted else 0}"
        )
        survived = after.outputs == before.outputs and right > 0
        self._check(survived, "the history survives a crash and can still be drafted")
        return self._section(
            "After a crash", "The service was killed; its store restored the history.", answers
        )

    def _first_match(self) -> list[Answer]:
        show.heading(self.console, "All three layers: one question under the first-match policy")
        self.console.print(
            "first-match takes the first layer that has at least three tokens, at any cost. On "
            "small machines that is often slower than plain decoding; it shows every layer drafting."
        )
        answers: list[Answer] = []
        idle: list[str] = []
        for cost in FIRST_MATCH_COSTS:
            self.console.print(f"layers assume a cost of {cost} steps per drafted token:")
            config = DriverConfig(policy=Policy.FIRST_MATCH, first_match_cost=cost)

            def generate(call: Call, config: DriverConfig = config) -> Answer:
                return self.fixture.runner.drafted(call, config, commit=False)

            answers += self._answer_all([FIRST_MATCH], generate, None)
            layers = show.total(answers).layers
            idle = [name for name, counts in layers.items() if not counts.sent.accepted]
            if not idle:
                break
        self.console.print(show.layer_table("Per layer, first-match", answers))
        self._check(not idle, f"first-match accepts tokens of every layer (none of: {', '.join(idle)})")
        return self._section(
            "First-match", "The same agents under a policy that uses all three layers.", answers
        )

    def _two_processes(self) -> Exactness:
        """Return the exactness of both answers, which the processes have checked."""
        show.heading(self.console, "Two processes: each drafts from what the other one is writing")
        found = write_together(self.fixture.live_job(LIVE), self.fixture.check)
        for live in found:
            answer = live.answer
            self.console.print(
                f"{answer.process}: {answer.call.question.text}\n"
                f"    {answer.result.stats.mat:.2f} tokens per step (MAT), {len(answer.turns)} turns; "
                f"{live.live_share} drafted from the other one's live text",
                markup=False,
            )
        exactness = sum((live.exactness for live in found), Exactness(0, 0, ()))
        self.console.print(exactness.describe(), markup=False)
        self._check(exactness.ok, "every token of the two processes is the model's own choice")
        self._check(
            all(live.live_tokens for live in found), "each of two processes drafts from the other's live text"
        )
        self.live_facts = [
            (f"{NAMES[number]}, tokens from the live text of {NAMES[1 - number]}", live.live_share)
            for number, live in enumerate(found)
        ]
        self._section(
            "Two processes",
            "Two processes, each with a model and a follower of its own, answered these questions in turns, "
            "in a namespace that nothing else writes to. Small numbers mark where turns begin. By then the "
            "process has received what the other one has written so far, of which nothing is stored until "
            f"both answers are written. A drafted token is assumed to cost {STEPS_PER_DRAFTED_TOKEN} steps: "
            "this section shows what is drafted, not a speed.",
            [live.answer for live in found],
            self.live_facts,
        )
        return exactness

    def _exactness(self, answers: Sequence[Answer]) -> Exactness:
        show.heading(self.console, f"Exactness: checking {len(answers)} calls against plain decoding")
        found = Exactness(0, 0, ())
        for answer in answers:
            found += check_exactness(self.fixture.target, answer.result)
        self.console.print(found.describe(), markup=False)
        self._check(found.ok, "every token is the model's own choice")
        return found

    # ------------------------------------------------------------------------------------------------- output

    def _write_report(
        self, first: list[Answer], second: list[Answer], restarted: list[Answer], exactness: Exactness
    ) -> None:
        every = [answer for section in self.sections for answer in section.answers if not answer.process]
        queries = show.total(every).layers["suffix"]
        shares = {"first pass": first, "second pass": second, "first call after the crash": restarted[:1]}
        facts = [
            ("target model", self.chosen.name),
            ("draft model", self.chosen.draft.stem if self.chosen.draft else "none"),
            ("speed-up over plain decoding, second pass, median of paired calls", str(self.speedup)),
            *(
                (f"tokens from outputs of other calls, {of}", f"{show.suffix_share(a):.1%}")
                for of, a in shares.items()
            ),
            *self.live_facts,
            *(("exactness", line) for line in exactness.describe().splitlines()),
            ("steps that asked for outputs of other calls, in this process", str(queries.asked)),
        ]
        report.render(
            self.options.report,
            title="suffixsvc demo: the origin of every token",
            facts=facts,
            sections=self.sections,
            token_bytes=self.fixture.model.token_bytes,
        )
        self.console.print(
            f"\nEvery answer, coloured by the origin of its tokens: {self.options.report}", markup=False
        )
