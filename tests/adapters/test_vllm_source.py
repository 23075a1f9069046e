"""Our proposer against the source of the released vLLM: how it is found, made and called, what it reads."""

from __future__ import annotations

import ast

import pytest

from suffixsvc_adapters.vllm_proposer import SuffixProposer
from support.engine_source import calls, class_of, fields, function_of, must_take, parameters, parsed

pytestmark = pytest.mark.adapters

RUNNER = "vllm/v1/worker/gpu_model_runner.py"
BATCH = "vllm/v1/worker/gpu_input_batch.py"
DETOKENIZER = "vllm/v1/engine/detokenizer.py"


def attributes_read(where: ast.AST, name: str) -> set[str]:
    """Of the variable of that name."""
    return {
        node.attr
        for node in ast.walk(where)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == name
    }


def custom_class_branch(where: ast.AST) -> list[ast.stmt]:
    """What is done where the speculative method is "custom_class"."""
    for node in ast.walk(where):
        if isinstance(node, ast.If) and ast.unparse(node.test).endswith("method == 'custom_class'"):
            return node.body
    raise AssertionError("vLLM has no branch for custom_class any more")


def test_it_is_called_with_what_it_takes() -> None:
    branch = custom_class_branch(function_of(parsed(RUNNER), "propose_draft_token_ids"))
    (call,) = [c for part in branch for c in calls(part, "propose", "drafter)")]
    given = must_take(SuffixProposer(_config()).propose, call)
    assert given == [
        "sampled_token_ids=sampled_token_ids",
        "num_tokens_no_spec=self.input_batch.num_tokens_no_spec",
        "token_ids_cpu=self.input_batch.token_ids_cpu",
        "slot_mappings=slot_mappings",
    ]


def test_what_was_sampled_stands_in_the_buffer_before_it_is_asked() -> None:
    """Drafting comes after the bookkeeping that writes the sampled tokens and counts them."""
    bookkeeping = ast.unparse(function_of(parsed(RUNNER), "_bookkeeping_sync"))
    assert "self.input_batch.token_ids_cpu[req_idx, start_idx:end_idx] = sampled_ids" in bookkeeping
    assert "self.input_batch.num_tokens_no_spec[req_idx] = end_idx" in bookkeeping
    whole = ast.unparse(parsed(RUNNER))
    after = whole.index("if draft_after_bookkeeping:")
    assert whole.index("self._bookkeeping_sync(") < after
    assert "propose_draft_token_ids(valid_sampled_token_ids)" in whole[after : after + 200]


def test_it_is_made_from_the_configuration_alone() -> None:
    make = function_of(parsed("vllm/v1/spec_decode/custom_class_proposer.py"), "create_custom_proposer")
    (call,) = [c for c in ast.walk(make) if isinstance(c, ast.Call) and ast.unparse(c.func) == "user_class"]
    assert must_take(SuffixProposer, call) == ["vllm_config=vllm_config"]
    assert "'propose'" in ast.unparse(make)


def test_loading_a_model_is_asked_of_it() -> None:
    (call,) = list(calls(parsed(RUNNER), "load_model", "self.drafter"))
    must_take(SuffixProposer(_config()).load_model, call)


@pytest.mark.parametrize(
    ("path", "name", "read"),
    [
        ("vllm/config/speculative.py", "SpeculativeConfig", {"num_speculative_tokens", "method", "model"}),
        (
            "vllm/config/model.py",
            "ModelConfig",
            {"max_model_len", "get_vocab_size", "try_get_generation_config"},
        ),
        (
            BATCH,
            "CachedRequestState",
            {"sampling_params", "prompt_token_ids", "prompt_embeds", "output_token_ids"},
        ),
        (BATCH, "InputBatch", {"req_ids"}),
        (
            "vllm/sampling_params.py",
            "SamplingParams",
            {"eos_token_id", "stop_token_ids", "max_tokens", "min_tokens", "stop", "repetition_detection"},
        ),
        ("vllm/config/scheduler.py", "SchedulerConfig", {"max_num_seqs"}),
        (
            "vllm/config/parallel.py",
            "ParallelConfig",
            {"rank", "tensor_parallel_size", "prefill_context_parallel_size"},
        ),
        (
            "vllm/config/vllm.py",
            "VllmConfig",
            {
                "additional_config",
                "speculative_config",
                "model_config",
                "scheduler_config",
                "parallel_config",
            },
        ),
    ],
)
def test_what_it_reads_of_the_configuration_is_there(path: str, name: str, read: set[str]) -> None:
    assert read <= fields(class_of(path, name))


def test_the_caller_has_the_rows_and_their_requests() -> None:
    """It is found as the ``self`` of a calling frame. A request that finished leaves its table; one that was
    preempted, or is not scheduled in a step, leaves the batch only."""
    runner = class_of(RUNNER, "GPUModelRunner")
    caller = function_of(runner, "propose_draft_token_ids")
    assert caller.args.args[0].arg == "self"
    update = ast.unparse(function_of(runner, "_update_states"))
    finished = update.index("for req_id in scheduler_output.finished_req_ids:")
    assert "self.requests.pop(req_id, None)" in update[finished : finished + 200]
    unscheduled = update.index("for req_id in unscheduled_req_ids:")
    assert "self.input_batch.remove_request(req_id)" in update[unscheduled : unscheduled + 100]
    assert update.count("self.requests.pop(") == 1
    state = class_of(BATCH, "CachedRequestState")
    assert "self.num_prompt_tokens =" in ast.unparse(function_of(state, "__post_init__"))
    assert "self.token_ids_cpu =" in ast.unparse(function_of(class_of(BATCH, "InputBatch"), "__init__"))


def test_a_response_ends_by_the_rules_that_are_applied_to_its_output() -> None:
    """The scheduler's, token by token, in their order."""
    stop = function_of(parsed("vllm/v1/core/sched/utils.py"), "check_stop")
    assert [ast.unparse(node.test) for node in stop.body if isinstance(node, ast.If)] == [
        "last_token_id == sampling_params.eos_token_id",
        "last_token_id in (sampling_params.stop_token_ids or ())",
        "request.num_tokens >= max_model_len or request.num_output_tokens >= request.max_tokens",
        "request.num_output_tokens < sampling_params.min_tokens",
        "repetition_detection is not None and check_sequence_repetition("
        "request.output_token_ids, repetition_detection)",
    ]
    update = function_of(parsed("vllm/v1/core/sched/scheduler.py"), "_update_request_with_output")
    assert "stopped = check_stop(request, self.max_model_len)" in ast.unparse(update)
    assert "del new_token_ids[num_new:]" in ast.unparse(update)


def test_stop_strings_are_found_by_the_detokenizer_that_is_used() -> None:
    make = function_of(class_of(DETOKENIZER, "IncrementalDetokenizer"), "from_new_request")
    assert parameters(make) == ["tokenizer", "request"]
    read = attributes_read(parsed(DETOKENIZER), "request")
    assert read == {"request_id", "sampling_params", "prompt_token_ids", "prompt_embeds"}
    update = function_of(class_of(DETOKENIZER, "BaseIncrementalDetokenizer"), "update")
    assert parameters(update) == ["new_token_ids", "stop_terminated"]
    assert "del self.token_ids[first_new_token_index + num_kept:]" in ast.unparse(update)
    tokenizer = function_of(parsed("vllm/tokenizers/registry.py"), "cached_tokenizer_from_config")
    assert parameters(tokenizer) == ["model_config"]


def test_the_drafts_of_a_groups_first_rank_are_taken() -> None:
    """Why the other ranks draft nothing."""
    executor = class_of("vllm/v1/executor/multiproc_executor.py", "MultiprocExecutor")
    assert "unique_reply_rank=self.output_rank" in ast.unparse(function_of(executor, "take_draft_token_ids"))
    rank = ast.unparse(function_of(executor, "_get_output_rank").body[-1])
    assert rank == (
        "return self.world_size - self.parallel_config.tensor_parallel_size"
        " * self.parallel_config.prefill_context_parallel_size"
    )


def _config() -> object:
    from types import SimpleNamespace

    return SimpleNamespace(
        speculative_config=SimpleNamespace(num_speculative_tokens=8),
        model_config=SimpleNamespace(max_model_len=64, get_vocab_size=lambda: 100),
        scheduler_config=SimpleNamespace(max_num_seqs=2),
        parallel_config=SimpleNamespace(rank=0, tensor_parallel_size=1, prefill_context_parallel_size=1),
        additional_config={},
    )
