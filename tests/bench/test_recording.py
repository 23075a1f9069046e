"""Recording the workloads: the file that survives a kill, many answers at once, the verb."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from suffixsvc.errors import InvalidInputError
from suffixsvc_bench.recording import batch_generator
from suffixsvc_bench.recording.answers import AnswerFile
from suffixsvc_bench.recording.batch_generator import PREFIX_SLOTS, BatchGenerator
from suffixsvc_bench.recording.options import RecordingOptions
from suffixsvc_bench.recording.run import open_recording
from suffixsvc_bench.replay.logs import read_calls
from suffixsvc_bench.speculation.recorded_call import RecordedCall
from suffixsvc_bench.workloads import Split, Task, load_workload
from suffixsvc_cli.bench import app
from suffixsvc_driver.decode.loop import generate
from suffixsvc_driver.targets.llama.context import LlamaContext
from suffixsvc_driver.targets.single import LlamaTarget
from support.targets import WIDTH_INDEPENDENT
from support.tiny_gguf import write_tiny_llama


def task(number: int, system: str = "s", *, max_tokens: int = 20) -> Task:
    messages = [{"role": "system", "content": system}, {"role": "user", "content": f"question {number}"}]
    return Task(f"sql-shop-{number:08x}", "sql", "shop", "sql-only", Split.TRAIN, messages, max_tokens)


def call(number: int) -> RecordedCall:
    ids = [number, 7, 8]
    return RecordedCall(f"sql-shop-{number:08x}", "sql-only", 0, "p", "naïve 漢", [1, 2], ids, "stop")


def opened(path: Path, model: str = "m", tokenizer: str = "xxh3:1") -> AnswerFile:
    return AnswerFile(path, model=model, tokenizer=tokenizer)


def filled(path: Path, count: int) -> None:
    with opened(path) as file:
        for number in range(count):
            file.add(task(number), call(number))


class TestFile:
    def test_added_answers_are_read_again(self, tmp_path: Path) -> None:
        path = tmp_path / "sql.jsonl"
        filled(path, 2)
        with opened(path) as file:
            assert file.recorded == {"sql-shop-00000000": 3, "sql-shop-00000001": 3}
            file.add(task(2), call(2))
        records = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        assert [record["response_token_ids"][0] for record in records] == [0, 1, 2]
        assert records[2]["meta"] == {
            "task": "sql-shop-00000002",
            "split": "train",
            "kind": "sql-only",
            "theme": "shop",
            "finish": "stop",
        }

    def test_replay_reads_it(self, tmp_path: Path) -> None:
        path = tmp_path / "sql.jsonl"
        filled(path, 2)
        calls = list(read_calls(path, None))
        assert [(c.agent, c.prompt.tolist(), c.response.tolist()) for c in calls] == [
            ("sql-only", [1, 2], [0, 7, 8]),
            ("sql-only", [1, 2], [1, 7, 8]),
        ]

    @pytest.mark.parametrize("kept", [1, 40, -1])
    def test_a_torn_last_line_is_cut_off(self, tmp_path: Path, kept: int) -> None:
        path = tmp_path / "sql.jsonl"
        filled(path, 3)
        whole = path.read_bytes()
        lines = whole.splitlines(keepends=True)
        path.write_bytes(b"".join(lines[:2]) + lines[2][:kept])
        with opened(path) as file:
            assert len(file.recorded) == 2
            file.add(task(2), call(2))
        assert path.read_bytes() == whole

    @pytest.mark.parametrize(("model", "tokenizer"), [("other", "xxh3:1"), ("m", "xxh3:2")])
    def test_another_model_or_vocabulary_is_refused(self, tmp_path: Path, model: str, tokenizer: str) -> None:
        path = tmp_path / "sql.jsonl"
        filled(path, 1)
        with path.open("ab") as stream:
            stream.write(b'{"torn')
        before = path.read_bytes()
        with pytest.raises(InvalidInputError, match="line 1 must be of the same") as error:
            opened(path, model, tokenizer)
        assert "--out-dir" in str(error.value)
        assert path.read_bytes() == before

    def test_a_file_of_something_else_is_left_alone(self, tmp_path: Path) -> None:
        path = tmp_path / "sql.jsonl"
        for content in (b"name,price\n", b'{"meta": 3}\n', b"\xff\xfe\n", b"\n", b"[" * 100_000 + b"\n"):
            path.write_bytes(content)
            with pytest.raises(InvalidInputError, match="line 1 must be an answer of bench record"):
                opened(path)
            assert path.read_bytes() == content

    def test_only_one_process_appends_to_it(self, tmp_path: Path) -> None:
        path = tmp_path / "sql.jsonl"
        with opened(path), pytest.raises(InvalidInputError, match="must not be in use by another process"):
            opened(path)
        opened(path).__exit__(None, None, None)

    @pytest.mark.crash
    def test_a_killed_process_loses_no_added_answer(self, tmp_path: Path) -> None:
        path = tmp_path / "sql.jsonl"
        program = (
            "import itertools, sys\n"
            f"sys.path[:0] = {[str(Path(__file__).parent), str(Path(__file__).parents[1])]!r}\n"
            "from pathlib import Path\n"
            "from test_recording import call, opened, task\n"
            f"with opened(Path({str(path)!r})) as file:\n"
            "    for number in itertools.count():\n"
            "        file.add(task(number), call(number))\n"
            "        print(number, flush=True)\n"
        )
        with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as victim:
            assert victim.stdout is not None
            for _ in range(20):
                assert victim.stdout.readline()
            os.kill(victim.pid, signal.SIGKILL)
            printed = 20 + len(
                [line for line in victim.stdout.read().splitlines(keepends=True) if "\n" in line]
            )
        assert victim.returncode == -signal.SIGKILL
        with opened(path) as file:
            assert len(file.recorded) >= printed
            assert list(file.recorded) == [task(n).id for n in range(len(file.recorded))]
            file.add(task(len(file.recorded)), call(0))
        with opened(path) as file:
            assert len(file.recorded) > printed


@pytest.fixture(scope="module")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_llama(tmp_path_factory.mktemp("tiny") / "tiny.gguf", seed=7)


class TestBatchGenerator:
    #: arithmetic that does not depend on how many tokens are computed at once
    EXACT = replace(WIDTH_INDEPENDENT, context_size=512, slots=PREFIX_SLOTS + 3, max_width=3)

    def answers(self, model: Path, tasks: list[Task], context: int = 512) -> dict[str, RecordedCall]:
        with BatchGenerator(model, replace(self.EXACT, context_size=context)) as generator:
            return {each.id: answer for each, answer in generator.answers(iter(tasks))}

    def test_each_answer_is_the_one_that_the_model_gives_alone(self, tiny_model: Path) -> None:
        # more tasks than answer slots, more system messages than prefix slots, answers of different lengths
        tasks = [task(i, f"system {i * 7 % (PREFIX_SLOTS + 3)}", max_tokens=5 + i % 9) for i in range(80)]
        answers = self.answers(tiny_model, tasks)
        assert set(answers) == {each.id for each in tasks}
        with LlamaTarget(tiny_model, replace(WIDTH_INDEPENDENT, context_size=512)) as target:
            for each in tasks:
                prompt = target.model.tokenize(target.model.chat(each.messages))
                alone = generate(target, prompt, max_tokens=each.max_tokens)
                answer = answers[each.id]
                assert answer.prompt_ids == prompt
                assert tuple(answer.token_ids) == alone.token_ids
                assert answer.finish == str(alone.finish)

    def test_a_step_takes_adjacent_slots_in_order(
        self, tiny_model: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        # llama.cpp computes only a run of adjacent slots at once. Taken in another order, a step of 32
        # answers was 32 steps of one, and a recording came to a tenth of its speed.
        steps: list[list[int]] = []
        decode_each = LlamaContext.decode_each

        def watch(context: LlamaContext, tokens: list[int], positions: list[int], slots: list[int]) -> None:
            steps.append(slots)
            decode_each(context, tokens, positions, slots)

        monkeypatch.setattr(LlamaContext, "decode_each", watch)
        waiting = iter([task(i, max_tokens=3 + i % 5) for i in range(20)])
        with BatchGenerator(tiny_model, self.EXACT) as model:
            for _ in model.answers(waiting):
                pass
        full = [PREFIX_SLOTS, PREFIX_SLOTS + 1, PREFIX_SLOTS + 2]
        assert steps.count(full) > 10
        assert all(slots == sorted(slots) for slots in steps)
        assert full not in steps[steps.index(next(slots for slots in steps if slots != full)) :]

    def test_a_conversation_without_a_system_message(self, tiny_model: Path) -> None:
        alone = replace(task(1), messages=[{"role": "user", "content": "hello"}])
        (answer,) = self.answers(tiny_model, [alone]).values()
        assert len(answer.token_ids) == alone.max_tokens

    def test_an_answer_ends_where_the_context_does(self, tiny_model: Path) -> None:
        tasks = [task(i, "x" * 120, max_tokens=5000) for i in range(24)]
        full = [a for a in self.answers(tiny_model, tasks, 256).values() if a.finish == "context"]
        assert full
        for answer in full:
            assert len(answer.prompt_ids) + len(answer.token_ids) == 256 + 1

    def test_the_step_callback_can_end_it(self, tiny_model: Path) -> None:
        def stop() -> None:
            raise KeyboardInterrupt

        with BatchGenerator(tiny_model, self.EXACT, stop) as model, pytest.raises(KeyboardInterrupt):
            next(model.answers(iter([task(1)])))


def shorten_tasks(monkeypatch: pytest.MonkeyPatch, max_tokens: int, characters: int = 10_000) -> None:
    """The first tasks of each workload, with messages of a few characters and answers of a few tokens."""
    from suffixsvc_bench.recording import run

    def short(task: Task) -> Task:
        messages = [{**each, "content": each["content"][:characters]} for each in task.messages]
        return replace(task, messages=messages, max_tokens=max_tokens)

    monkeypatch.setattr(run, "load_workload", lambda name: [short(each) for each in load_workload(name)[:8]])


class TestRecording:
    @pytest.fixture
    def short(self, monkeypatch: pytest.MonkeyPatch) -> None:
        shorten_tasks(monkeypatch, max_tokens=6)

    def test_workloads_alternate_and_a_second_run_continues(
        self, tmp_path: Path, tiny_model: Path, short: None
    ) -> None:
        order: list[str] = []
        options = RecordingOptions(("sql", "code"), tmp_path / "new", str(tiny_model), 1, width=2, limit=3)
        with open_recording(options, lambda: None) as recording:
            recording.run(lambda each: order.append(each.workload))
            assert {name: progress.left for name, progress in recording.workload_progress.items()} == {
                "sql": 0,
                "code": 0,
            }
        assert sorted(order) == ["code"] * 3 + ["sql"] * 3
        assert set(order[:2]) == {"sql", "code"}
        first = (tmp_path / "new" / "sql.jsonl").read_bytes()

        seen: list[str] = []
        with open_recording(replace(options, limit=5), lambda: None) as recording:
            assert recording.workload_progress["sql"].recorded == 3
            recording.run(lambda each: seen.append(each.id))
            assert recording.workload_progress["sql"].recorded_now == 2
        assert len(seen) == len(set(seen)) == 4
        lines = (tmp_path / "new" / "sql.jsonl").read_bytes()
        assert lines.startswith(first)
        tasks = [json.loads(line)["meta"]["task"] for line in lines.splitlines()]
        assert sorted(tasks) == sorted(each.id for each in load_workload("sql")[:5])

    def test_invalid_options_are_refused(self, tmp_path: Path, tiny_model: Path) -> None:
        options = RecordingOptions((), tmp_path, str(tiny_model), threads=1)
        for names in ((), ("sql", "sql"), ("prose",)):
            with (
                pytest.raises(InvalidInputError),
                open_recording(replace(options, workloads=names), lambda: None),
            ):
                pass
        file = tmp_path / "file"
        file.touch()
        with (
            pytest.raises(InvalidInputError, match="--out-dir must be a folder"),
            open_recording(replace(options, workloads=("sql",), out_dir=file / "x"), lambda: None),
        ):
            pass


@pytest.mark.model
def test_two_tasks_on_the_small_model(
    tmp_path: Path, real_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shorten_tasks(monkeypatch, max_tokens=12, characters=200)
    monkeypatch.setattr(batch_generator, "CONTEXT", 256)  # the KV of 34 slots is cleared twice
    command = ["record", "json", "--out-dir", str(tmp_path), "--model", str(real_model)]
    command += ["--threads", "1", "--width", "2", "--limit", "2", "--json"]
    result = CliRunner().invoke(app, command, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    summary = json.loads(result.stdout)
    assert summary["complete"]
    assert summary["workloads"]["json"]["recorded_now"] == 2
    assert sum(summary["workloads"]["json"]["finish_now"].values()) == 2
    records = [json.loads(line) for line in (tmp_path / "json.jsonl").read_text().splitlines()]
    assert {record["meta"]["task"] for record in records} == {each.id for each in load_workload("json")[:2]}
    for record in records:
        assert record["model"] == real_model.stem
        assert record["tokenizer"].startswith("xxh3:")
        assert record["meta"]["finish"] == "stop" or len(record["response_token_ids"]) == 12

    again = json.loads(CliRunner().invoke(app, command, catch_exceptions=False).stdout)
    assert again["workloads"]["json"] == {
        **summary["workloads"]["json"],
        "recorded_now": 0,
        "tokens_now": 0,
        "finish_now": {},
    }
