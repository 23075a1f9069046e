"""The stages of the demo in order. Each method of :class:`Demo` is one stage."""

from __future__ import annotations

import itertools
import math
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.markup import escape

from suffixsvc_bench.demo import agents, database, report, show
from suffixsvc_bench.demo.agent_runner import Answer
from suffixsvc_bench.demo.fixture import DemoFixture
from suffixsvc_bench.demo.paired import Interval, Pairing, median_ratio
from suffixsvc_bench.demo.pipeline import Call, answer_question
from suffixsvc_bench.demo.questions import AFTER_RESTART, FIRST_MATCH, Question, passes
from suffixsvc_bench.demo.recording import Recorder
from suffixsvc_bench.demo.setup import DemoOptions, ModelSelection, check_output_file, choose_models
from suffixsvc_bench.report.stopping import stop_on_signals
from suffixsvc_driver.decode.exactness import Exactness, check_exactness
from suffixsvc_driver.settings.driver_config import DriverConfig, Policy
from suffixsvc_driver.targets.llama.machine import usable_cores

__all__ = ["run_demo"]

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


def run_demo(options: DemoOptions, download: Callable[[str], Path], console: Console | None = None) -> int:
    """Run the demo.

    Args:
        options: see :class:`DemoOptions`.
        download: downloads a model of the registry and returns its file.
        console: where to print.

    Returns:
        The exit code: 1 if a check failed on this machine, else 0.

    Raises:
        InvalidConfigError: contradicting options, or a file that cannot be written.
    """
    console = console or _console()
    check_output_file(options.report, "--report")
    if options.record is not None:
        check_output_file(options.record, "--record")
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
        with stop_on_signals() as raise_if_stopped, ExitStack() as stack:
            threads = options.threads or usable_cores()
            show.heading(console, f"Setting up: {chosen.name} on {threads} threads")
            shop = folder / "shop.sqlite"
            database.create(shop)
            console.print("a SQLite shop: customers, products, orders (the same rows every time)")
            fixture = DemoFixture(chosen, folder, threads, options.context, console, stack)
            fixture.runner.speculator.on_step = lambda _: raise_if_stopped()
            return Demo(options, chosen, shop, console, fixture, began).run()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _console() -> Console:
    console = Console(highlight=False)
    # a log file has no window width
    return console if console.is_terminal else Console(highlight=False, width=LOG_WIDTH)


@dataclass
class Demo:
    """A run of the demo: its stages and their results."""

    options: DemoOptions
    chosen: ModelSelection
    shop: Path
    console: Console
    fixture: DemoFixture
    began: float  #: time.monotonic() when the demo started
    first_pass_seconds: float = 0.0
    pairings: list[Pairing] = field(default_factory=list)
    sections: list[report.Section] = field(default_factory=list)
    failed_checks: list[str] = field(default_factory=list)

    def run(self) -> int:
        """Run all stages in order; return the exit code."""
        with self._recorder() as record:
            before = time.monotonic()
            first = self._first_pass(record)
            self.first_pass_seconds = time.monotonic() - before
            second = self._second_pass(record)
            self._compare(first, second)
            restarted = self._restart(record, second[-1])
        checked = second[:: max(1, len(second) // CHECKED_CALLS)][:CHECKED_CALLS]
        if self.chosen.draft is not None:
            checked.append(self._first_match()[-1])
        exactness = self._exactness(checked[:1] if self.options.quick else checked)
        self._write_report(first, second, restarted, exactness)
        self.console.print(f"\nDone in {(time.monotonic() - self.began) / 60:.1f} minutes.")
        for check in self.failed_checks:
            self.console.print(f"[red]Failed on this machine: {escape(check)}[/red]")
        return 1 if self.failed_checks else 0

    # --------------------------------------------------------------------------------------------- the passes

    def _first_pass(self, record: Callable[[Answer, int], None]) -> list[Answer]:
        questions, _ = passes(self.options.questions_per_pass)
        show.heading(self.console, f"First pass: {len(questions)} questions, the service is empty")
        if self.chosen.small and self.options.target is None:
            self.console.print(
                "(a model this small writes poor SQL and JSON; the origins of its tokens matter here)"
            )
        config = DriverConfig()
        answers = self._answer_all(
            questions, lambda call: self.fixture.runner.drafted(call, config), record, 1
        )
        self.console.print(show.layer_table("Per layer, first pass", answers))
        self.sections.append(
            report.Section(
                "First pass", "The service starts empty and indexes what the agents write.", answers
            )
        )
        return answers

    def _second_pass(self, record: Callable[[Answer, int], None]) -> list[Answer]:
        _, questions = passes(self.options.questions_per_pass)
        show.heading(
            self.console,
            f"Second pass: {len(questions)} other questions of the same kind, first pass indexed",
        )
        every, both_sides = self._sample()
        which = "every call" if every == 1 else f"one call in {every} (all would exceed the time budget)"
        order = "plain before and after it" if both_sides else "plain before or after it, alternating"
        self.console.print(f"{which} runs once with drafts, and {order}")
        numbers = itertools.count()

        def generate(call: Call) -> Answer:
            number = next(numbers)
            if number % every:
                return self.fixture.runner.drafted(call, DriverConfig())
            before = both_sides or number // every % 2 == 1
            return self._paired(call, before=before, after=both_sides or not before)

        answers = self._answer_all(questions, generate, record, 2)
        self.sections.append(
            report.Section("Second pass", "The outputs of the first pass can be drafted now.", answers)
        )
        return answers

    def _sample(self) -> tuple[int, bool]:
        """Choose which calls of the second pass are compared, by the duration of the first pass.

        Returns:
            n for "every n-th call", and whether there is a plain run on both sides of it. If time is short,
            twice as many calls with one plain run each are more informative.
        """
        answers = self.sections[0].answers
        plain = sum(len(a.result.token_ids) for a in answers) * self.fixture.runner.curve.seconds_per_step
        passed = time.monotonic() - self.began
        left = SECONDS[self.options.quick] - passed - (1 + REST_OF_PASSES) * self.first_pass_seconds
        left = max(left, MIN_COMPARING_SECONDS[self.options.quick])
        every = 1 if 2 * plain <= left else math.ceil(plain / left)
        every |= 1  # odd: an even step would always select the same two of the four agents
        return every, 2 * plain <= left * every

    def _paired(self, call: Call, *, before: bool, after: bool) -> Answer:
        """Run a call once with drafts, and plain before or after it or both."""
        plain = [self.fixture.runner.plain(call)] if before else []
        drafted = self.fixture.runner.drafted(call, DriverConfig())
        if after:
            plain.append(self.fixture.runner.plain(call))
        timings = tuple(answer.timing for answer in plain)
        self.pairings.append(Pairing(call.name, call.agent.name, drafted.timing, timings))
        return drafted

    def _answer_all(
        self,
        questions: Sequence[Question],
        generate: Callable[[Call], Answer],
        record: Callable[[Answer, int], None],
        pass_number: int,
    ) -> list[Answer]:
        """Run questions through the agents with a progress bar."""
        answers: list[Answer] = []
        with show.progress(self.console) as bar:
            task = bar.add_task("", total=len(questions))
            for question in questions:
                its_answers: list[Answer] = []

                def one_call(call: Call, its_answers: list[Answer] = its_answers) -> str:
                    bar.update(task, description=f"{call.question.key}: {call.agent.name} writes")
                    answer = generate(call)
                    record(answer, pass_number)
                    its_answers.append(answer)
                    return answer.text

                outcome = answer_question(question, one_call, self.shop)
                show.print_outcome(bar.console, outcome, its_answers)
                bar.advance(task)
                answers.extend(its_answers)
        return answers

    def _compare(self, first: list[Answer], second: list[Answer]) -> None:
        self.console.print(show.layer_table("Per layer, second pass", second))
        self.console.print(show.agent_table(self.pairings, second))
        self.speedup = median_ratio(self.pairings)
        before, after = show.suffix_share(first), show.suffix_share(second)
        self.console.print(
            f"speed-up over plain decoding, median of paired calls: [bold]{self.speedup}[/bold]"
        )
        self.console.print(
            f"tokens drafted from another call's output (suffix share): first pass {before:.1%}, "
            f"second pass [bold]{after:.1%}[/bold]"
        )
        if self.speedup is None or self.speedup.median <= 1.0:
            self.failed_checks.append("the second pass is faster than plain decoding")
        if after <= before:
            self.failed_checks.append("the second pass drafts more from the service than the first")

    # ----------------------------------------------------------------------------------------- after a crash

    def _restart(self, record: Callable[[Answer, int], None], earlier: Answer) -> list[Answer]:
        show.heading(self.console, "A crash: the service is killed (SIGKILL) and started again")
        before = self.fixture.client.stats()
        self.fixture.service.kill()
        began = time.monotonic()
        self.fixture.start_service()
        took = time.monotonic() - began
        after = self.fixture.stats_after_restart()
        self.console.print(
            f"outputs before {before.outputs}, after {after.outputs}; tokens before {before.tokens}, after "
            f"{after.tokens}; answering again after {took:.1f} s, as process {self.fixture.service.pid}"
        )
        text = earlier.result
        right = self.fixture.recalled_after_restart(text.prompt_ids, text.token_ids)
        self.console.print(
            f"the last answer before the crash, replayed: "
            f"the service drafts [bold]{right}[/bold] of its {len(text.token_ids)} tokens"
        )
        answers = self._after_restart(record)
        # later calls can also draft what the first one wrote after the restart
        accepted = show.total(answers[:1]).evidence.get("suffix")
        self.console.print(
            f"accepted tokens of the first new call from outputs before the crash: "
            f"{accepted.accepted if accepted else 0}"
        )
        if after.outputs != before.outputs or not right:
            self.failed_checks.append("the history survives a crash and can still be drafted")
        self.sections.append(
            report.Section(
                "After a crash", "The service was killed; its store restored the history.", answers
            )
        )
        return answers

    def _after_restart(self, record: Callable[[Answer, int], None]) -> list[Answer]:
        """Answer a whole question; quick: only its planner call."""
        config = DriverConfig()
        if not self.options.quick:
            return self._answer_all(
                [AFTER_RESTART], lambda call: self.fixture.runner.drafted(call, config), record, 3
            )
        call = Call(agents.PLANNER, AFTER_RESTART, 0, agents.plan_prompt(AFTER_RESTART.text))
        answer = self.fixture.runner.drafted(call, config)
        record(answer, 3)
        self.console.print(f"the planner, on a new question: {answer.text}", markup=False)
        return [answer]

    def _first_match(self) -> list[Answer]:
        show.heading(self.console, "All three layers: one question under the first-match policy")
        self.console.print(
            "first-match takes the first layer that has at least three tokens, at any cost. On "
            "small machines that is often slower than plain decoding; it shows every layer drafting."
        )
        answers: list[Answer] = []
        idle: list[str] = []
        for cost in FIRST_MATCH_COSTS:
            answers += self._under_first_match(cost)
            layers = show.total(answers).layers
            idle = [name for name, counts in layers.items() if not counts.sent.accepted]
            if not idle:
                break
        self.console.print(show.layer_table("Per layer, first-match", answers))
        if idle:
            self.failed_checks.append(
                f"first-match accepts tokens of every layer (none of: {', '.join(idle)})"
            )
        self.sections.append(
            report.Section(
                "First-match", "The same agents under a policy that uses all three layers.", answers
            )
        )
        return answers

    def _under_first_match(self, cost: float) -> list[Answer]:
        self.console.print(f"layers assume a cost of {cost} steps per drafted token:")
        config = DriverConfig(policy=Policy.FIRST_MATCH, first_match_cost=cost)

        def generate(call: Call) -> Answer:
            return self.fixture.runner.drafted(call, config, commit=False)

        return self._answer_all([FIRST_MATCH], generate, lambda answer, number: None, 4)

    def _exactness(self, answers: Sequence[Answer]) -> Exactness:
        show.heading(self.console, f"Exactness: checking {len(answers)} calls against plain decoding")
        found = Exactness(0, 0, ())
        for answer in answers:
            found += check_exactness(self.fixture.runner.target, answer.result)
        self.console.print(found.describe(), markup=False)
        if not found.ok:
            self.failed_checks.append("every token is the model's own choice")
        return found

    # ------------------------------------------------------------------------------------------------- output

    def _write_report(
        self, first: list[Answer], second: list[Answer], restarted: list[Answer], exactness: Exactness
    ) -> None:
        speedup: Interval | None = self.speedup
        facts = [
            ("target model", self.chosen.name),
            ("draft model", self.chosen.draft.stem if self.chosen.draft else "none"),
            ("speed-up over plain decoding, second pass, median of paired calls", str(speedup)),
            ("tokens from the service, first pass", f"{show.suffix_share(first):.1%}"),
            ("tokens from the service, second pass", f"{show.suffix_share(second):.1%}"),
            (
                "tokens from the service, first call after the crash",
                f"{show.suffix_share(restarted[:1]):.1%}",
            ),
            *(("exactness", line) for line in exactness.describe().splitlines()),
            ("queries to the service", self._client_counts()),
        ]
        report.render(
            self.options.report,
            title="suffixsvc demo: the origin of every token",
            facts=facts,
            sections=self.sections,
            token_bytes=self.fixture.runner.target.model.token_bytes,
        )
        self.console.print(
            f"\nEvery answer, coloured by the origin of its tokens: {self.options.report}", markup=False
        )

    def _client_counts(self) -> str:
        counts = self.fixture.client.counts
        empty = ", ".join(f"{number} {reason}" for reason, number in counts.empty.items() if number)
        return f"{counts.steps} steps, {counts.drafts} with a draft; without an answer: {empty or 'none'}"

    @contextmanager
    def _recorder(self) -> Iterator[Callable[[Answer, int], None]]:
        if self.options.record is None:
            yield lambda answer, pass_number: None
            return
        recorder = Recorder(self.options.record, model=self.chosen.name, tokenizer=self.fixture.fingerprint)
        with recorder:
            yield recorder.write
        self.console.print(f"every call recorded: {self.options.record}", markup=False)
