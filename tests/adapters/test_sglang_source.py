"""Our corpus and plugin against the source of the released SGLang: what is called, hooked and read."""

from __future__ import annotations

import ast

import pytest

from suffixsvc_adapters.sglang_ngram import SuffixCorpus, after_worker_init, before_prepare_draft_tokens
from support.engine_source import calls, class_of, function_of, methods_called, must_take, parameters, parsed

pytestmark = pytest.mark.adapters

SRT = "sglang/srt/"
WORKER, CORPUS = SRT + "speculative/ngram_worker.py", SRT + "speculative/cpp_ngram/ngram_corpus.py"
HOOKS = SRT + "plugins/hook_registry.py"


def test_every_method_that_the_worker_calls_is_there_with_its_parameters() -> None:
    worker, theirs = class_of(WORKER, "NGRAMWorker"), class_of(CORPUS, "NgramCorpus")
    called = methods_called(worker, "self.ngram_corpus")
    assert {"batch_get", "batch_put", "erase_match_state", "synchronize", "reset"} <= called
    for name in sorted(called):
        ours = getattr(SuffixCorpus, name)
        for call in calls(worker, name, "self.ngram_corpus"):
            must_take(ours.__get__(object()), call)
        names = [parameter.split("=")[0] for parameter in parameters(function_of(theirs, name))]
        code = ours.__code__
        assert names == list(code.co_varnames[1 : code.co_argcount]), name


def test_only_the_worker_calls_the_corpus() -> None:
    """The scheduler's corpora go through the worker, whose methods the plugin leaves as they are."""
    manager = ast.unparse(parsed(SRT + "speculative/external_corpus_manager.py"))
    assert "ngram_corpus" not in manager
    assert "ngram_corpus" not in ast.unparse(parsed(SRT + "managers/scheduler.py"))


def test_the_shape_of_an_answer() -> None:
    """Tokens and masks as flat int64 arrays; a node's parent is the last ancestor in its row."""
    ffi = function_of(parsed("sglang/kernels/ops/speculative/ngram_corpus.py"), "match_stateful")
    text = ast.unparse(ffi)
    assert "torch.zeros(batch_size * d, dtype=torch.int32)" in text
    assert "torch.zeros(batch_size * d * d, dtype=torch.uint8)" in text
    assert text.count(".astype(np.int64)") == 2
    links = ast.unparse(function_of(parsed(WORKER), "_derive_tree_links"))
    assert "mask.reshape(bs, draft_token_num, draft_token_num)" in links
    assert "tree & (node_order < node_order[:, None])" in links
    prepare = ast.unparse(function_of(class_of(WORKER, "NGRAMWorker"), "_prepare_draft_tokens"))
    assert "total_draft_token_num == bs * self.draft_token_num" in prepare


def test_the_hooks_have_their_targets_and_are_called_like_that() -> None:
    worker = class_of(WORKER, "NGRAMWorker")
    made = function_of(worker, "__init__")
    assert parameters(made) == ["server_args", "gpu_id", "nccl_port", "target_worker"]
    assert "self.ngram_corpus = NgramCorpus(" in ast.unparse(made)
    assert parameters(function_of(worker, "_prepare_draft_tokens")) == ["batch"]
    wrap = ast.unparse(function_of(parsed(HOOKS), "_wrap_fn"))
    assert "modified = hook(result, *args, **kwargs)" in wrap
    assert "result = hook(*args, **kwargs)" in wrap
    arguments = ast.parse("hook(result, worker, server_args=s, gpu_id=g, nccl_port=n, target_worker=t)")
    must_take(after_worker_init, next(n for n in ast.walk(arguments) if isinstance(n, ast.Call)))
    arguments = ast.parse("hook(worker, batch)")
    must_take(before_prepare_draft_tokens, next(n for n in ast.walk(arguments) if isinstance(n, ast.Call)))
    register = function_of(class_of(HOOKS, "HookRegistry"), "register")
    assert parameters(register)[:3] == ["target", "hook", "hook_type=HookType.AFTER"]
    kinds = ast.unparse(class_of(HOOKS, "HookType"))
    assert "BEFORE =" in kinds
    assert "AFTER =" in kinds


def test_plugins_are_loaded_before_the_worker_is_made() -> None:
    plugins = ast.unparse(parsed(SRT + "plugins/__init__.py"))
    assert "GENERAL_PLUGINS_GROUP = 'sglang.srt.plugins'" in plugins
    process = function_of(parsed(SRT + "managers/scheduler.py"), "run_scheduler_process")
    assert ast.unparse(process.body[0]) == "load_plugins()"


def test_what_the_hooks_read_is_there() -> None:
    made = ast.unparse(function_of(class_of(WORKER, "NGRAMWorker"), "__init__"))
    for attribute in ("server_args", "model_runner", "draft_token_num", "topk", "max_trie_depth"):
        assert f"self.{attribute}" in made
    order = ast.unparse(parsed(SRT + "arg_groups/field_order.py"))
    for option in ("tp_size", "pp_size", "max_running_requests"):
        assert f"'{option}'" in order
    prepare = ast.unparse(function_of(class_of(WORKER, "NGRAMWorker"), "_prepare_draft_tokens"))
    assert "req.rid for req in batch.reqs" in prepare
    assert "req.origin_input_ids_unpadded[-self.max_trie_depth:]" in prepare
    assert "req.output_ids[-self.max_trie_depth:]" in prepare
    assert "self.model_config.vocab_size" in ast.unparse(parsed(SRT + "model_executor/model_runner.py"))


def test_requests_that_left_the_batch_are_named() -> None:
    forward = ast.unparse(function_of(class_of(WORKER, "NGRAMWorker"), "forward_batch_generation"))
    assert "self._prev_decode_rids - cur_rids" in forward
    assert "self.ngram_corpus.erase_match_state(list(departed_rids))" in forward
