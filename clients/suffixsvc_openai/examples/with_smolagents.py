"""The task of the examples with smolagents.

python -m suffixsvc_openai.examples.with_smolagents
"""

from __future__ import annotations

from smolagents import LogLevel, OpenAIModel, ToolCallingAgent, tool

from suffixsvc_openai.examples.running import run_example
from suffixsvc_openai.examples.shop import ANALYST, PLANNER, Shop


def answer(base_url: str, model: str, shop: Shop, question: str) -> str:
    """Return the agents' answer to a question."""
    chat = OpenAIModel(model_id=model, api_base=base_url, api_key="any", temperature=0)

    @tool
    def run_sql(query: str) -> str:
        """Run a query on the shop's database and return its rows.

        Args:
            query: a SELECT of SQLite.
        """
        return shop.run_sql(query)

    class Analyst(ToolCallingAgent):
        """An agent that is handed a task."""

        def __call__(self, task: str, **more: object) -> str:
            """Answer the task of another agent."""
            shop.plans.append(task)
            return str(super().__call__(task, **more))

    analyst = Analyst(
        [run_sql], chat, name="analyst", description="Queries the shop's database.", instructions=ANALYST,
        max_steps=4, verbosity_level=LogLevel.OFF,
    )  # fmt: skip
    planner = ToolCallingAgent(
        [], chat, managed_agents=[analyst], instructions=PLANNER, max_steps=4, verbosity_level=LogLevel.OFF
    )
    return str(planner.run(question))


if __name__ == "__main__":
    run_example(answer)
