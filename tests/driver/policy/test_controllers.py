"""Controllers of K: fixed, by acceptance, by kind of text, by class of model; and the
classification of text."""

from __future__ import annotations

import pytest

from suffixsvc.errors import InvalidConfigError
from suffixsvc_driver.drafts.events import Begin, LayerAnswer, QueryLayer, StepResult, Verify
from suffixsvc_driver.policy.controllers import CONTENT_RANGES, KController
from suffixsvc_driver.settings.driver_config import Controller, DriverConfig
from suffixsvc_driver.settings.model_class import CLASS_RANGES, ModelClass, model_class
from suffixsvc_driver.settings.text_kind import ContentType, content_type
from suffixsvc_driver.speculation.state_machine import GenerationStateMachine
from support.replica import GPU, SUFFIX, TWO_CORES, chain, text

TEXTS = {
    ContentType.CODE: [
        "def f(x):\n    return x + 1\n\n\nclass A:\n    def g(self):\n        pass\n",
        "SELECT name\nFROM users\nWHERE id = 3\nORDER BY name;",
        "--- a/x.c\n+++ b/x.c\n@@ -1,2 +1,2 @@\n-int x;\n+int y;\n",
        "int main() {\n  return 0;\n}\n",
    ],
    ContentType.JSON: [
        '{"name": "search", "arguments": {"query": "shoes", "limit": 3}}',
        '[{"id": 1, "ok": true}, {"id": 2, "ok": false}]',
    ],
    ContentType.PROSE: [
        "The history of the town goes back a long way. It was founded by merchants who needed a harbour. "
        "Later it became known for its glass. Today most people work elsewhere and come home at night."
    ],
    ContentType.GENERAL: ["", "\n\n", "1. eggs\n2. milk\n3. flour", "7 12 19 44"],
}


@pytest.mark.parametrize("kind", list(ContentType))
def test_kinds_of_text(kind: ContentType) -> None:
    for sample in TEXTS[kind]:
        assert content_type(sample) is kind, sample


def fed(config: DriverConfig, accepted: int, steps: int = 200, content: ContentType | None = None) -> int:
    controller = KController(config)
    if content is not None:
        controller.set_content(content)
    for _ in range(steps):
        controller.add(10, accepted)
    return controller.value


def test_adaptive_k_rises_falls_and_stays_between_its_bounds() -> None:
    config = DriverConfig(policy="first-match")
    assert KController(config).value == 12
    assert fed(config, 10) == 24
    assert fed(config, 2) == 4
    assert fed(config, 7) == 12
    # one review every 16 steps, 4 at a time
    assert fed(config, 10, steps=15) == 12
    assert fed(config, 10, steps=16) == 16


@pytest.mark.parametrize("k", [1, 7, 32])
def test_fixed_k_is_constant(k: int) -> None:
    """Outside the range of adaptive-k it was refused."""
    config = DriverConfig(policy="first-match", controller="fixed-k", k_start=k)
    assert fed(config, 0) == fed(config, 10) == k


@pytest.mark.parametrize("content", list(ContentType))
def test_content_k_stays_in_the_range_of_the_text(content: ContentType) -> None:
    config = DriverConfig(policy="first-match", controller="content-k")
    low, high = CONTENT_RANGES[content]
    assert fed(config, 0, content=content) == low
    assert fed(config, 10, content=content) == high


def test_class_k_stays_in_the_range_of_the_class() -> None:
    for kind, (low, high) in CLASS_RANGES.items():
        config = DriverConfig(policy="first-match", controller="class-k", model_class=kind)
        assert fed(config, 0) == low
        assert fed(config, 10) == high
    with pytest.raises(InvalidConfigError, match="class of the model"):
        DriverConfig(controller=Controller.CLASS)
    with pytest.raises(InvalidConfigError, match="adaptive-k"):
        DriverConfig(controller="k")
    assert model_class(70_000_000_000, 0) is ModelClass.DENSE_LARGE
    assert model_class(1_500_000_000, 0) is ModelClass.DENSE_SMALL
    assert model_class(480_000_000_000, 128) is ModelClass.MOE


def test_the_driver_follows_the_kind_of_text() -> None:
    """Prose at first, then code: the drafts get longer."""
    config = DriverConfig(policy="first-match", controller="content-k")
    driver = GenerationStateMachine(config, GPU, [SUFFIX])
    truth = text(200, seed=1)
    widths = []
    event: Begin | StepResult = Begin(10, 150, 4096, 1000, content=ContentType.PROSE)
    written = 0
    while written < 100:
        query = driver.on(event)
        assert isinstance(query, QueryLayer)
        verify = driver.on(LayerAnswer("suffix", chain(truth[written : written + query.budget], 0.9)))
        assert isinstance(verify, Verify)
        widths.append(len(verify.token_ids))
        n = len(verify.token_ids)
        emitted = tuple(truth[written : written + n + 1])
        written += n + 1
        event = StepResult(emitted, n, n + 1, content=ContentType.CODE if written > 30 else None)
    assert widths[0] == 8
    assert max(widths) >= 20


def test_expected_gain_ignores_controllers() -> None:
    """Controllers belong to first-match; expected gain ignores them."""
    driver = GenerationStateMachine(DriverConfig(controller="fixed-k", k_start=4), TWO_CORES, [SUFFIX])
    assert driver.curve is TWO_CORES
