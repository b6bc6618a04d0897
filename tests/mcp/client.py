"""The official SDK as a client of `lockkeeper mcp`: client.py BINARY URL all|hold MODE."""

import asyncio
import sys

from mcp import Client, Implementation, StdioServerParameters

BINARY, URL, WHAT, MODE = sys.argv[1:]


def agent(name):
    server = StdioServerParameters(command=BINARY, args=["mcp", "--url", URL])
    return Client(server, mode=MODE, client_info=Implementation(name=name, version="1"))


async def call(client, tool, progress=None, **arguments):
    result = await client.call_tool(tool, arguments, progress_callback=progress)
    assert not result.is_error, result
    return result.content[0].text


async def everything():
    async with agent("one") as one:
        tools = [tool.name for tool in (await one.list_tools()).tools]
        assert tools == ["acquire", "release", "status", "list"], tools
        assert (await call(one, "acquire", key="k", purpose="deploy")).startswith("Acquired 'k'")
        async with agent("two") as two:
            held = await call(two, "acquire", key="k", purpose="roll back")
            assert " one: deploy\"" in held, held

            waits = asyncio.Event()
            told = []

            async def progress(seconds, total, message):
                told.append((seconds, total, message))
                waits.set()

            wait = dict(key="k", purpose="roll back", wait_seconds=50)
            # A cancelled call is out of the line.
            waiting = asyncio.create_task(call(two, "acquire", progress, **wait))
            await waits.wait()
            assert told[0][1] == 50 and "place 1 of 1" in told[0][2], told
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)
            while "waits in line" in await call(one, "status", key="k"):
                await asyncio.sleep(0.01)
            await call(one, "release", key="k")
            assert "'k' is free" in await call(two, "status", key="k")
            # One that waits is served.
            await call(one, "acquire", key="k", purpose="deploy")
            waits.clear()
            waiting = asyncio.create_task(call(two, "acquire", progress, **wait))
            await waits.wait()
            await call(one, "release", key="k")
            assert (await waiting).startswith("Acquired 'k'")
            wrong = await two.call_tool("acquire", {"key": "/k", "purpose": "x"})
            assert wrong.is_error and "use `k`" in wrong.content[0].text, wrong
        # The other session is closed.
        assert "'k' is free" in await call(one, "status", key="k")


async def hold():
    async with agent("killed") as client:
        print(await call(client, "acquire", key="k", purpose="be killed"), flush=True)
        await asyncio.Event().wait()


asyncio.run(everything() if WHAT == "all" else hold())
