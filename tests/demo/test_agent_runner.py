"""What a drafted run is charged for, on a tiny random model and a real cache."""

from __future__ import annotations

from pathlib import Path

from suffixsvc import SuffixCache
from suffixsvc_bench.demo import agents
from suffixsvc_bench.demo.agent_runner import AgentRunner
from suffixsvc_bench.demo.pipeline import Call
from suffixsvc_bench.demo.questions import FIRST_PASS
from suffixsvc_bench.speculation.speculator import Speculator
from suffixsvc_driver.cost.curve import CostCurve
from suffixsvc_driver.cost.live_curve import LiveCurve
from suffixsvc_driver.settings.driver_config import DriverConfig
from suffixsvc_driver.targets.llama.context import ContextSettings
from suffixsvc_driver.targets.single import LlamaTarget
from support.tiny_gguf import write_tiny_llama


def test_a_drafted_run_pays_for_its_session_and_a_plain_one_for_nothing(tmp_path: Path) -> None:
    model = write_tiny_llama(tmp_path / "tiny.gguf", context=4096)
    settings = ContextSettings(context_size=2048, slots=2, threads=1, max_width=8)
    call = Call(agents.PLANNER, FIRST_PASS[0], 0, agents.plan_prompt(FIRST_PASS[0].text))
    with LlamaTarget(model, settings) as target, SuffixCache() as cache:
        curve = LiveCurve(CostCurve.linear(0.1, 8))
        stored_at_end: list[int] = []
        speculator = Speculator(target, curve, cache.namespace("demo/tiny"))
        speculator.on_end = lambda: stored_at_end.append(cache.stats().outputs)
        runner = AgentRunner(target.model, speculator)
        drafted, plain = runner.drafted(call, DriverConfig()), runner.plain(call)
        assert cache.stats().outputs == 1
        assert stored_at_end == [0, 1], "it is called before the session is closed"
    assert drafted.outcome.seconds > drafted.result.decode_seconds
    assert plain.outcome.seconds == plain.result.decode_seconds
    assert drafted.result.token_ids == plain.result.token_ids
