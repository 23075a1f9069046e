"""`bench decode`: documents, conversations, and several targets, draft models and K in one run."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from suffixsvc.errors import InvalidInputError
from suffixsvc_bench.decode.checks import check_options
from suffixsvc_bench.decode.figures import by_length
from suffixsvc_bench.decode.options import DecodeOptions
from suffixsvc_bench.decode.tables import length_grid
from suffixsvc_bench.decode.variants.variants import settings_for
from suffixsvc_bench.decode.workload.jobs import Job, Workload, WorkloadChoice, load_workloads, read_texts
from suffixsvc_bench.speculation.paired import Outcome, Pair
from suffixsvc_cli.bench import app
from suffixsvc_driver.sampling.settings import GREEDY
from suffixsvc_driver.settings.driver_config import LayerKind
from suffixsvc_driver.settings.model_class import ModelClass
from suffixsvc_driver.targets.llama.model import LlamaModel
from support.tiny_gguf import write_tiny_llama

ANSWER = "Yes, for once."


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LlamaModel]:
    path = write_tiny_llama(tmp_path_factory.mktemp("bytes") / "bytes.gguf", context=16_384)
    with LlamaModel(path, vocab_only=True) as model:
        yield model


def loaded(model: LlamaModel, name: str, *, calls: int = 99, context: int = 16_000) -> Workload:
    def answer(job: Job) -> Sequence[int]:
        return model.tokenize(ANSWER)

    [workload] = load_workloads(WorkloadChoice((name,), calls, 100, context), model, answer)
    return workload


def test_documents_are_summarised_and_asked_about(model: LlamaModel) -> None:
    documents = read_texts("documents")
    count = len(documents["document"])
    summaries, questions = loaded(model, "summary"), loaded(model, "document-qa")
    assert len(summaries.jobs) == count * len(documents["instructions"]) == 12
    assert len(questions.jobs) == sum(len(each["questions"]) for each in documents["document"]) == 16
    for workload in (summaries, questions):
        assert len({job.key for job in workload.jobs}) == len({job.prompt_ids for job in workload.jobs})
        assert not workload.warmup
    # few calls are of all documents for summaries, and of the same document for questions
    assert len({job.key.split("-")[0] for job in summaries.jobs[:count]}) == count
    first = model.detokenize(questions.jobs[0].prompt_ids)
    assert documents["document"][0]["text"].strip() in first
    assert documents["document"][0]["questions"][0] in first


def test_a_conversation_grows_by_its_answers(model: LlamaModel) -> None:
    conversations = read_texts("conversations")["conversation"]
    assert all(len(each["questions"]) >= 20 for each in conversations)
    workload = loaded(model, "conversation")
    texts = {job.key: model.detokenize(job.prompt_ids) for job in workload.jobs}
    assert len(texts) == sum(len(each["questions"]) for each in conversations)
    for conversation in conversations:
        last = texts[f"{conversation['name']}-{len(conversation['questions']) - 1}"]
        assert last.count(ANSWER) == len(conversation["questions"]) - 1
        assert all(question in last for question in conversation["questions"])
    # a turn that does not fit ends its conversation, and the next one begins
    few = loaded(model, "conversation", context=900)
    assert 1 < len(few.jobs) < 20
    assert {job.key.split("-")[0] for job in few.jobs} == {each["name"] for each in conversations}
    assert len(loaded(model, "conversation", calls=3).jobs) == 3


def test_acceptance_is_grouped_by_the_length_of_the_prompt() -> None:
    pairs = [
        Pair("j", "a", Outcome(10, 1.0, steps=10 - n, drafted=10, accepted=n), Outcome(10, 1.0, 10), 100 * n)
        for n in (8, 1, 3, 6, 2, 5, 4, 7)
    ]
    rows = by_length(pairs)
    assert [(row.least, row.most) for row in rows] == [(100, 200), (300, 400), (500, 600), (700, 800)]
    assert [row.acceptance for row in rows] == pytest.approx([0.15, 0.35, 0.55, 0.75])
    assert rows[0].tokens_per_step == pytest.approx(20 / 17)
    assert [row.most for row in by_length(pairs[:2])] == [100, 800]
    assert by_length([]) == []


def test_fixed_k_is_compared_with_each_set_of_layers() -> None:
    options = DecodeOptions(
        (Path("m.gguf"),), policies=("fixed-k",), ks=(2, 8), layers=("all", "draft-model")
    )
    made = settings_for(options, GREEDY, ModelClass.DENSE_SMALL)
    assert [each.name for each in made] == ["K = 2", "K = 8", "K = 2, draft-model", "K = 8, draft-model"]
    assert made[2].layers == (LayerKind.DRAFT_MODEL,)
    assert made[3].config.k_start == 8


def test_every_target_is_measured_with_every_draft_model(tmp_path: Path) -> None:
    one, two, draft = (Path(name) for name in ("one.gguf", "two.gguf", "draft.gguf"))
    options = DecodeOptions((one, two), threads=1, prepared=tmp_path / "answers.json")
    assert options.pairs == [(one, None), (two, None)]
    assert replace(options, drafts=(draft,)).pairs == [(one, draft), (two, draft)]
    assert options.prepared_for(two) == tmp_path / "answers-two.json"
    assert replace(options, targets=(one,)).prepared_for(one) == tmp_path / "answers.json"
    assert options.fixture(pair=(two, draft)).target == two


def test_a_draft_model_with_another_vocabulary_is_refused(tmp_path: Path) -> None:
    target = write_tiny_llama(tmp_path / "target.gguf")
    other = write_tiny_llama(tmp_path / "other.gguf", texts=[f"<{i}>" for i in range(259)])
    options = DecodeOptions((target,), (target,), workloads=("chat",), threads=1)
    check_options(options)
    with pytest.raises(InvalidInputError, match=r"vocabulary of --target: other.gguf for target.gguf"):
        check_options(replace(options, drafts=(target, other)))


def test_targets_drafts_and_k_in_one_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two targets with a draft model, greedily and at a temperature, on real services and draft workers."""
    monkeypatch.setenv("SUFFIXSVC_HOME", str(tmp_path / "home"))
    models = [
        write_tiny_llama(tmp_path / f"{name}.gguf", seed=i, context=2048) for i, name in enumerate("ab")
    ]
    targets = [word for path in models for word in ("--target", str(path))]
    layers = ["--layers", "all", "--layers", "draft-model"]
    layers += ["--policy", "fixed-k", "--k", "2,4", "--temperature", "0,0.7"]
    small = ["--calls", "3", "--rounds", "1", "--max-tokens", "12", "--max-width", "8", "--threads", "1"]
    report = tmp_path / "report.json"
    result = CliRunner().invoke(
        app,
        [
            *("decode", *targets, "--draft", str(models[0]), "--workload", "conversation"),
            *(*layers, *small, "--report", str(report), "--prepared", str(tmp_path / "answers.json")),
        ],
        catch_exceptions=False,
    )
    assert result.exit_code == 0, result.output
    found = json.loads(report.read_text(encoding="utf-8"))
    assert (found["target"], found["draft"]) == ("a.gguf, b.gguf", "a.gguf")
    names = ["conversation, a", "conversation at 0.7, a", "conversation, b", "conversation at 0.7, b"]
    assert list(found["pairs"]) == list(found["lengths"]) == names
    variants = ["K = 2", "K = 4", "K = 2, draft-model", "K = 4, draft-model"]
    assert [row["variant"] for row in found["rows"]] == variants * 4
    # whether the draft model's reply is in time is a matter of the machine
    assert sum(row["drafted"] for row in found["rows"] if row["variant"] in variants[:2]) > 0
    lengths = found["lengths"]["conversation, a"][variants[0]]
    assert [row["speedup"]["pairs"] for row in lengths] == [1, 1, 1]
    assert lengths[0]["most"] < lengths[1]["least"] < lengths[2]["least"]
    assert len(length_grid(found).rows) == 3 * len(variants) * len(names)
    assert {path.name for path in tmp_path.glob("answers*")} == {"answers-a.json", "answers-b.json"}
