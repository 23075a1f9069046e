"""Agent frameworks on ``suffixsvc openai``: one task of two agents, with nothing changed but ``base_url``.

    suffixsvc openai qwen2.5-coder-1.5b --data ./memory
    python -m suffixsvc_openai.examples.with_openai_agents
    python -m suffixsvc_openai.examples.with_langgraph
    python -m suffixsvc_openai.examples.with_smolagents

A planner hands a question over to an analyst, with a plan; the analyst queries a database with a tool, checks
the result, and answers. The frameworks are in the extra ``examples``.
"""
