"""The demo from beginning to end. Each method of :class:`Demo` is one thing that the reader watches."""

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
from suffixsvc_driver.config import DriverConfig, Policy
from suffixsvc_driver.exactness import Exactness, check_exactness
from suffixsvc_driver.machine import usable_cores

from suffixsvc_bench.demo import agents, database, report, show
from suffixsvc_bench.demo.brain import Answer
from suffixsvc_bench.demo.paired import Interval, Pairing, median_ratio
from suffixsvc_bench.demo.pipeline import Call, answer_question
from suffixsvc_bench.demo.questions import AFTER_RESTART, FIRST_MATCH, Question, passes
from suffixsvc_bench.demo.recording import Recorder
from suffixsvc_bench.demo.rig import Rig
from suffixsvc_bench.demo.setup import Chosen, check_output_file, choose_models
from suffixsvc_bench.stopping import stop_on_signals

__all__ = ["DemoOptions", "run_demo"]

#: calls of the second pass that are checked for exactness, spread evenly; quick: the first of them
CHECKED_CALLS: Final = 3
#: how long it all may take, quick or not, on a machine that is slow but not too slow; to keep to it, only
#: every n-th call is compared with plain decoding
SECONDS: Final = {False: 570.0, True: 190.0}
#: what follows the second pass takes about so many times what the first pass took
REST_OF_PASSES: Final = 0.6
#: comparing gets at least so much, quick or not
LEAST_COMPARING_SECONDS: Final = {False: 45.0, True: 20.0}
#: the prices that layers are told under first-match, tried in turn until every layer had its say: a low one
#: lets the first layers draft freely, a higher one leaves room for the draft model
FIRST_MATCH_COSTS: Final = (0.05, 0.2)
LOG_WIDTH: Final = 110


@dataclass(frozen=True, slots=True)
class DemoOptions:
    """What the command line asked for.

    Attributes:
        small: the tiny model, no draft model.
        quick: fewer questions and comparisons.
        record: write every call to this file.
        report: write the page there.
        target, draft: models instead of the usual ones.
        threads: of the target; None = one a physical core.
        context: tokens that an agent's prompt and answer may take.
        questions: in each of the two passes; None = 6, or 2 if quick.
    """

    small: bool = False
    quick: bool = False
    record: Path | None = None
    report: Path = Path("report.html")
    target: str | None = None
    draft: str | None = None
    threads: int | None = None
    questions: int | None = None
    context: int = 2048

    @property
    def questions_per_pass(self) -> int:
        return self.questions or (2 if self.quick else 6)


def run_demo(options: DemoOptions, download: Callable[[str], Path], console: Console | None = None) -> int:
    """Run it all; returns the exit code: 1 when a promise was not kept on this machine, else 0.

    Args:
        options: see :class:`DemoOptions`.
        download: gets a model of the registry that is not here, and returns its file.
        console: where to print.

    Raises:
        InvalidConfigError: options that exclude each other, or a file that cannot be written.
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
        say=lambda text: console.print(f"[yellow]{escape(text)}[/yellow]"),
    )
    began = time.monotonic()  # downloads are not the demo's time
    folder = Path(tempfile.mkdtemp(prefix="suffixsvc-demo-"))
    try:
        with stop_on_signals() as stop_if_told, ExitStack() as stack:
            threads = options.threads or usable_cores()
            show.heading(console, f"Setting up: {chosen.name} on {threads} threads")
            shop = folder / "shop.sqlite"
            database.create(shop)
            console.print("a SQLite shop: customers, products, orders (the same rows every time)")
            rig = Rig(chosen, folder, threads, options.context, console, stack)
            rig.brain.speculator.on_step = lambda _: stop_if_told()
            return Demo(options, chosen, shop, console, rig, began).run()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _console() -> Console:
    console = Console(highlight=False)
    # in a log file there is no window to be narrow
    return console if console.is_terminal else Console(highlight=False, width=LOG_WIDTH)


@dataclass
class Demo:
    """A run of the demo: its stages, and what they found."""

    options: DemoOptions
    chosen: Chosen
    shop: Path
    console: Console
    rig: Rig
    began: float  #: time.monotonic() when the demo started
    first_pass_seconds: float = 0.0
    pairings: list[Pairing] = field(default_factory=list)
    sections: list[report.Section] = field(default_factory=list)
    broken_promises: list[str] = field(default_factory=list)

    def run(self) -> int:
        """All stages, in order."""
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
        for promise in self.broken_promises:
            self.console.print(f"[red]Not kept on this machine: {escape(promise)}[/red]")
        return 1 if self.broken_promises else 0

    # --------------------------------------------------------------------------------------------- the passes

    def _first_pass(self, record: Callable[[Answer, int], None]) -> list[Answer]:
        questions, _ = passes(self.options.questions_per_pass)
        show.heading(self.console, f"First pass: {len(questions)} questions, nothing is remembered yet")
        if self.chosen.small and self.options.target is None:
            self.console.print(
                "(a model this small writes poor SQL and JSON; watch where its tokens come from)"
            )
        config = DriverConfig()
        answers = self._ask(questions, lambda call: self.rig.brain.drafted(call, config), record, 1)
        self.console.print(show.layer_table("Per layer, first pass", answers))
        self.sections.append(
            report.Section("First pass", "The service starts empty and learns as the agents write.", answers)
        )
        return answers

    def _second_pass(self, record: Callable[[Answer, int], None]) -> list[Answer]:
        _, questions = passes(self.options.questions_per_pass)
        show.heading(
            self.console, f"Second pass: {len(questions)} other questions of the same kind, all remembered"
        )
        every, both_sides = self._sample()
        which = "every call" if every == 1 else f"one call in {every} (all would take too long here)"
        order = "plain before and after it" if both_sides else "plain before or after it, in turn"
        self.console.print(f"{which} runs once with drafts, and {order}")
        numbers = itertools.count()

        def generate(call: Call) -> Answer:
            number = next(numbers)
            if number % every:
                return self.rig.brain.drafted(call, DriverConfig())
            before = both_sides or number // every % 2 == 1
            return self._paired(call, before=before, after=both_sides or not before)

        answers = self._ask(questions, generate, record, 2)
        self.sections.append(
            report.Section("Second pass", "What was written in the first pass can be drafted now.", answers)
        )
        return answers

    def _sample(self) -> tuple[int, bool]:
        """Which calls of the second pass to compare, judged by how long the first pass took: every n-th,
        and whether with a plain run on both sides of it. Where time is short, twice as many calls with one
        plain run each say more."""
        answers = self.sections[0].answers
        plain = sum(len(a.result.token_ids) for a in answers) * self.rig.brain.curve.seconds_per_step
        passed = time.monotonic() - self.began
        left = SECONDS[self.options.quick] - passed - (1 + REST_OF_PASSES) * self.first_pass_seconds
        left = max(left, LEAST_COMPARING_SECONDS[self.options.quick])
        every = 1 if 2 * plain <= left else math.ceil(plain / left)
        every |= 1  # odd: an even step would meet the same two of the four agents every time
        return every, 2 * plain <= left * every

    def _paired(self, call: Call, *, before: bool, after: bool) -> Answer:
        """Once with drafts, and plain before or after it, or both.

        Never twice with drafts: the second run would profit from what the service learned in the first.
        """
        plain = [self.rig.brain.plain(call)] if before else []
        drafted = self.rig.brain.drafted(call, DriverConfig())
        if after:
            plain.append(self.rig.brain.plain(call))
        timings = tuple(answer.timing for answer in plain)
        self.pairings.append(Pairing(call.name, call.agent.name, drafted.timing, timings))
        return drafted

    def _ask(
        self,
        questions: Sequence[Question],
        generate: Callable[[Call], Answer],
        record: Callable[[Answer, int], None],
        pass_number: int,
    ) -> list[Answer]:
        """Run questions through the agents, showing how it goes."""
        answers: list[Answer] = []
        with show.progress(self.console) as bar:
            task = bar.add_task("", total=len(questions))
            for question in questions:
                own: list[Answer] = []

                def one_call(call: Call, own: list[Answer] = own) -> str:
                    bar.update(task, description=f"{call.question.key}: {call.agent.name} writes")
                    answer = generate(call)
                    record(answer, pass_number)
                    own.append(answer)
                    return answer.text

                outcome = answer_question(question, one_call, self.shop)
                show.print_outcome(bar.console, outcome, own)
                bar.advance(task)
                answers.extend(own)
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
            f"tokens that came from another call's output (suffix share): first pass {before:.1%}, "
            f"second pass [bold]{after:.1%}[/bold]"
        )
        if self.speedup is None or self.speedup.median <= 1.0:
            self.broken_promises.append("the second pass is faster than plain decoding")
        if after <= before:
            self.broken_promises.append("the second pass takes more from memory than the first")

    # ----------------------------------------------------------------------------------------- after a crash

    def _restart(self, record: Callable[[Answer, int], None], earlier: Answer) -> list[Answer]:
        show.heading(self.console, "A crash: the service is killed (SIGKILL) and started again")
        before = self.rig.client.stats()
        self.rig.service.kill()
        began = time.monotonic()
        self.rig.start_service()
        took = time.monotonic() - began
        after = self.rig.stats_when_up()
        self.console.print(
            f"outputs before {before.outputs}, after {after.outputs}; tokens before {before.tokens}, after "
            f"{after.tokens}; up again and answering after {took:.1f} s, as process {self.rig.service.pid}"
        )
        text = earlier.result
        right = self.rig.drafted_when_up(text.prompt_ids, text.token_ids)
        self.console.print(
            f"the last answer from before the crash, asked for again: "
            f"the service drafts [bold]{right}[/bold] of its {len(text.token_ids)} tokens"
        )
        answers = self._after_restart(record)
        # the later calls may also draft what the first one wrote after the restart
        accepted = show.total(answers[:1]).evidence.get("suffix")
        self.console.print(
            f"accepted tokens of the first new call that the service remembered across the crash: "
            f"{accepted.accepted if accepted else 0}"
        )
        if after.outputs != before.outputs or not right:
            self.broken_promises.append("the history survives a crash and still drafts")
        self.sections.append(
            report.Section(
                "After a crash", "The service was killed; its store brought the history back.", answers
            )
        )
        return answers

    def _after_restart(self, record: Callable[[Answer, int], None]) -> list[Answer]:
        """A whole question; quick: its planner only."""
        config = DriverConfig()
        if not self.options.quick:
            return self._ask([AFTER_RESTART], lambda call: self.rig.brain.drafted(call, config), record, 3)
        call = Call(agents.PLANNER, AFTER_RESTART, 0, agents.plan_prompt(AFTER_RESTART.text))
        answer = self.rig.brain.drafted(call, config)
        record(answer, 3)
        self.console.print(f"the planner, on a new question: {answer.text}", markup=False)
        return [answer]

    def _first_match(self) -> list[Answer]:
        show.heading(self.console, "All three layers at work: one question under the first-match policy")
        self.console.print(
            "first-match takes the first layer that has at least three tokens, whatever they cost. On "
            "small machines that is often slower than plain decoding: it is here to be seen, not to win."
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
            self.broken_promises.append(f"first-match accepts tokens of every layer (none of: {idle})")
        self.sections.append(
            report.Section(
                "First-match", "The same agents under a policy that uses all three layers.", answers
            )
        )
        return answers

    def _under_first_match(self, cost: float) -> list[Answer]:
        self.console.print(f"with layers that draft while a token pays at a price of {cost} steps:")
        config = DriverConfig(policy=Policy.FIRST_MATCH, first_match_cost=cost)

        def generate(call: Call) -> Answer:
            return self.rig.brain.drafted(call, config, commit=False)

        return self._ask([FIRST_MATCH], generate, lambda answer, number: None, 4)

    def _exactness(self, answers: Sequence[Answer]) -> Exactness:
        show.heading(self.console, f"Is it the model's own text? Checking {len(answers)} calls both ways")
        found = Exactness(0, 0, ())
        for answer in answers:
            found += check_exactness(self.rig.brain.target, answer.result)
        self.console.print(found.describe(), markup=False)
        if not found.ok:
            self.broken_promises.append("every token is the model's own choice")
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
            ("tokens from memory, first pass", f"{show.suffix_share(first):.1%}"),
            ("tokens from memory, second pass", f"{show.suffix_share(second):.1%}"),
            ("tokens from memory, first call after the crash", f"{show.suffix_share(restarted[:1]):.1%}"),
            *(("exactness", line) for line in exactness.describe().splitlines()),
            ("asking the service", self._client_counts()),
        ]
        report.render(
            self.options.report,
            title="suffixsvc demo: where every token came from",
            facts=facts,
            sections=self.sections,
            token_bytes=self.rig.brain.target.model.token_bytes,
        )
        self.console.print(
            f"\nEvery answer, coloured by where its tokens came from: {self.options.report}", markup=False
        )

    def _client_counts(self) -> str:
        counts = self.rig.client.counts
        empty = ", ".join(f"{number} {reason}" for reason, number in counts.empty.items() if number)
        return f"{counts.steps} steps, {counts.drafts} with a draft; without an answer: {empty or 'none'}"

    @contextmanager
    def _recorder(self) -> Iterator[Callable[[Answer, int], None]]:
        if self.options.record is None:
            yield lambda answer, pass_number: None
            return
        recorder = Recorder(self.options.record, model=self.chosen.name, tokenizer=self.rig.fingerprint)
        with recorder:
            yield recorder.write
        self.console.print(f"every call recorded: {self.options.record}", markup=False)
