"""Two processes that share a service, with asyncio: what one wrote is drafted for the other.

    python -m suffixsvc_client.examples.two_processes unix:./suffixsvc.sock

Each process is an agent that generates its answers at the same time. In place of a model, which would verify
the drafts, the answers are given.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from typing import Final

from suffixsvc_client import AsyncClientNamespace, AsyncSuffixClient

NAMESPACE: Final = "examples/two-processes"
PROMPT: Final = (1, 2, 3)
#: token ids; the agents write the same but for a few tokens
ANSWERS: Final = {
    "first": [list(range(100, 140)), list(range(200, 240))],
    "second": [[*range(100, 120), 7, *range(121, 140)], [*range(200, 230), 8, 9]],
}


async def generate(namespace: AsyncClientNamespace, answer: Sequence[int]) -> int:
    """Write an answer; return the decode steps that it took."""
    session = await namespace.open_session(PROMPT)
    draft: Sequence[int] = ()
    position = steps = 0
    while position < len(answer):
        # a model computes the draft and one token more in a step, and accepts what it would have written
        accepted = 0
        while accepted < len(draft) and draft[accepted : accepted + 1] == answer[position + accepted :][:1]:
            accepted += 1
        written = answer[position : position + accepted + 1]
        position, steps = position + len(written), steps + 1
        draft = (await session.step(written)).token_ids.tolist()
    await session.close()
    return steps


async def agent(address: str, name: str) -> None:
    """Write all answers of an agent at the same time."""
    # a driver waits for milliseconds, and goes on without a draft
    async with AsyncSuffixClient(address, step_timeout_s=60) as client:
        namespace = client.namespace(NAMESPACE)
        steps = await asyncio.gather(*(generate(namespace, answer) for answer in ANSWERS[name]))
    tokens = sum(map(len, ANSWERS[name]))
    print(f"{name} process: {tokens} tokens in {sum(steps)} steps", flush=True)


async def main(address: str) -> None:
    """Run the agents, each in a process of its own, the second after the first."""
    for name in ANSWERS:
        command = [sys.executable, "-m", "suffixsvc_client.examples.two_processes", address, name]
        process = await asyncio.create_subprocess_exec(*command)
        if await process.wait() != 0:
            sys.exit(f"the {name} process failed")


if __name__ == "__main__":
    match sys.argv[1:]:
        case [address]:
            asyncio.run(main(address))
        case [address, name] if name in ANSWERS:
            asyncio.run(agent(address, name))
        case _:
            sys.exit("usage: python -m suffixsvc_client.examples.two_processes ADDRESS")
