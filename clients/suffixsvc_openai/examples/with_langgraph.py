"""The task of the examples with LangGraph.

python -m suffixsvc_openai.examples.with_langgraph
"""

from __future__ import annotations

from typing import Literal

from langchain_core.messages import HumanMessage, SystemMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition
from langgraph.types import Command

from suffixsvc_openai.examples.running import run_example
from suffixsvc_openai.examples.shop import ANALYST, PLANNER, Shop


def answer(base_url: str, model: str, shop: Shop, question: str) -> str:
    """Return the agents' answer to a question."""
    chat = ChatOpenAI(base_url=base_url, api_key=lambda: "any", model=model, temperature=0)
    run_sql = tool(shop.run_sql)

    @tool
    def ask_analyst(plan: str) -> str:
        """Hand the question over to the analyst.

        Args:
            plan: one sentence.
        """
        shop.plans.append(plan)
        return "The analyst takes over."

    def planner(state: MessagesState) -> Command[Literal["analyst"]]:
        forced = chat.bind_tools([ask_analyst], tool_choice="ask_analyst")
        said = forced.invoke([SystemMessage(PLANNER), *state["messages"]])
        results = [ask_analyst.invoke(call) for call in said.tool_calls]
        return Command(goto="analyst", update={"messages": [said, *results]})

    def analyst(state: MessagesState) -> MessagesState:
        has_queried = any(
            isinstance(each, ToolMessage) and each.name == run_sql.name for each in state["messages"]
        )
        bound = chat.bind_tools([run_sql], tool_choice="auto" if has_queried else run_sql.name)
        return {"messages": [bound.invoke([SystemMessage(ANALYST), *state["messages"]])]}

    graph = StateGraph(MessagesState)
    graph.add_node("planner", planner)
    graph.add_node("analyst", analyst)
    graph.add_node("tools", ToolNode([run_sql]))
    graph.add_edge(START, "planner")
    graph.add_conditional_edges("analyst", tools_condition)
    graph.add_edge("tools", "analyst")
    state = graph.compile().invoke({"messages": [HumanMessage(question)]})
    return str(state["messages"][-1].content)


if __name__ == "__main__":
    run_example(answer)
