"""The task of the examples with smolagents.

python -m suffixsvc_openai.examples.with_smolagents
"""

from __future__ import annotations

from smolagents import LogLevel, OpenAIModel, ToolCallingAgent, tool

from suffixsvc_openai.examples.running import run_example
from suffixsvc_openai.examples.shop import ANALYST, PLANNER, Shop


def answer(base_url: str, model: str, shop: Shop, question: str) -> str:
    """Return the agents' answer to a question."""

    def calling_first(name: str) -> OpenAIModel:
        choice = {"type": "function", "function": {"name": name}}
        return OpenAIModel(
            model_id=model, api_base=base_url, api_key="any", temperature=0, tool_choice=choice
        )

    planner_chat, analyst_chat = calling_first("analyst"), calling_first("run_sql")

    def run_sql(query: str) -> str:
        """Run a query on the shop's database and return its rows.

        Args:
            query: a SELECT on customers(id, name, city) and orders(id, customer_id, euros).
        """
        for chat in (planner_chat, analyst_chat):  # they may answer now
            chat.kwargs.pop("tool_choice", None)
        return shop.run_sql(query)

    limits = {"max_steps": 4, "verbosity_level": LogLevel.OFF}
    about = "Queries the shop's database."
    analyst = ToolCallingAgent(
        [tool(run_sql)], analyst_chat, name="analyst", description=about, instructions=ANALYST, **limits
    )
    planner = ToolCallingAgent([], planner_chat, managed_agents=[analyst], instructions=PLANNER, **limits)
    said = planner.run(question)
    calls = [call for step in planner.memory.steps for call in getattr(step, "tool_calls", None) or ()]
    shop.plans += [call.arguments["task"] for call in calls if call.name == analyst.name]
    return str(said)


if __name__ == "__main__":
    run_example(answer)
