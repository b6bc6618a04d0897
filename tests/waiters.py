"""Thousands of clients that wait for one key, on one thread: python3 tests/waiters.py <port> <how many> <how many reset>.

Each sends its request only when the line counts the one before it (in groups, for speed: within a
group they are sent in order on connections that stand, and the order is that of the fencing tokens
only between groups). Prints one JSON object; exits with 1 if anybody is not served in its turn.
"""

import asyncio
import json
import socket
import struct
import sys
import time

GROUP = 50
PATIENCE = 60  # seconds until so many wait
KEY = "/locks/crowd"
HOLDER = "token-of-the-holder"


class Client:
    """A connection on which requests follow one another."""

    async def connect(self, port):
        self.reader, self.writer = await asyncio.open_connection("127.0.0.1", port, limit=4096)

    def send(self, method, path, token="", body=""):
        head = f"{method} {path} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(body)}\r\n"
        head += f"lock-token: {token}\r\n" if token else ""
        self.writer.write(f"{head}\r\n{body}".encode())

    async def answer(self):
        head = (await self.reader.readuntil(b"\r\n\r\n")).decode().lower()
        length = [line.split(": ")[1] for line in head.split("\r\n") if line.startswith("content-length")]
        body = await self.reader.readexactly(int(length[0])) if length else b""
        return int(head.split(" ")[1]), json.loads(body) if body else {}

    async def ask(self, *request):
        self.send(*request)
        return await self.answer()

    def reset(self):
        sock = self.writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()


async def until_waiters(look, count):
    end = time.monotonic() + PATIENCE
    while (waiters := (await look.ask("GET", KEY))[1]["waiters"]) != count:
        if time.monotonic() > end:
            sys.exit(f"{waiters} wait, and not {count}")
        await asyncio.sleep(0.005)


async def serve(client, number, served):
    """Takes its turn, and releases at once."""
    status, grant = await client.answer()
    if status != 201:
        sys.exit(f"{number}: {status} {grant}")
    served.append((number, grant["fencing_token"]))
    status, _ = await client.ask("DELETE", KEY, grant["token"])
    if status != 204:
        sys.exit(f"{number}: the release is answered {status}")


async def main(port, count, resets):
    look = Client()
    await look.connect(port)
    status, _ = await look.ask("POST", KEY, HOLDER, '{"ttl_ms": 3600000}')
    assert status == 201, status
    clients = [Client() for _ in range(count)]
    began = time.monotonic()
    for number, client in enumerate(clients):
        await client.connect(port)
        client.send("POST", KEY, "", '{"wait_ms": 600000, "ttl_ms": 600000}')
        if number % GROUP == GROUP - 1:
            await until_waiters(look, number + 1)
    await until_waiters(look, count)
    joined = time.monotonic() - began

    print("ready", flush=True)  # Whoever started this measures, and says to go on.
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)
    left = [(number, client) for number, client in enumerate(clients)]
    began = time.monotonic()
    if resets:
        for number, client in left[::count // resets][:resets]:
            client.reset()
        gone = {number for number, _ in left[::count // resets][:resets]}
        left = [(number, client) for number, client in left if number not in gone]
        await until_waiters(look, len(left))
    reset = time.monotonic() - began
    served = []
    tasks = [asyncio.create_task(serve(client, number, served)) for number, client in left]
    await asyncio.sleep(0)
    began = time.monotonic()
    status, _ = await look.ask("DELETE", KEY, HOLDER)
    assert status == 204, status
    await asyncio.gather(*tasks)
    took = time.monotonic() - began
    groups = [number // GROUP for number, _ in served]
    tokens = [token for _, token in served]
    _, found = await look.ask("GET", KEY)
    print(json.dumps({
        "served": len(served),
        "wanted": len(left),
        "in_order": groups == sorted(groups) and tokens == sorted(set(tokens)),
        "left_over": found["held"] or found["waiters"] > 0,
        "joined_s": round(joined, 3),
        "reset_s": round(reset, 3),
        "hand_overs_per_s": round(len(served) / took),
    }), flush=True)


asyncio.run(main(*map(int, sys.argv[1:])))
