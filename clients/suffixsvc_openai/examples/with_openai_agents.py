"""The task of the examples with the OpenAI Agents SDK.

python -m suffixsvc_openai.examples.with_openai_agents
"""

from __future__ import annotations

import asyncio

from agents import Agent, ModelSettings, RunConfig, Runner, function_tool, handoff
from agents.models.openai_provider import OpenAIProvider
from pydantic import BaseModel

from openai import AsyncOpenAI
from suffixsvc_openai.examples.running import run_example
from suffixsvc_openai.examples.shop import ANALYST, PLANNER, Shop


class Plan(BaseModel):
    """What the planner hands over."""

    plan: str


async def _answer(base_url: str, model: str, shop: Shop, question: str) -> str:
    # a tool call comes first; after it, the SDK leaves the choice to the model
    settings = ModelSettings(temperature=0, tool_choice="required")
    analyst = Agent(
        name="analyst",
        instructions=ANALYST,
        model=model,
        model_settings=settings,
        tools=[function_tool(shop.run_sql)],
    )
    hand_over = handoff(analyst, on_handoff=lambda _, given: shop.plans.append(given.plan), input_type=Plan)
    planner = Agent(
        name="planner", instructions=PLANNER, model=model, model_settings=settings, handoffs=[hand_over]
    )
    async with AsyncOpenAI(base_url=base_url, api_key="any") as client:
        config = RunConfig(model_provider=OpenAIProvider(openai_client=client), tracing_disabled=True)
        result = await Runner.run(planner, question, run_config=config)
    return str(result.final_output)


def answer(base_url: str, model: str, shop: Shop, question: str) -> str:
    """Return the agents' answer to a question."""
    return asyncio.run(_answer(base_url, model, shop, question))


if __name__ == "__main__":
    run_example(answer)
