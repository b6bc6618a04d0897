// The official SDK as a client of `lockkeeper mcp`: client.mjs BINARY URL all|hold

import assert from "node:assert";
import { setTimeout as sleep } from "node:timers/promises";
import { Client } from "@modelcontextprotocol/sdk/client/index.js";
import { StdioClientTransport } from "@modelcontextprotocol/sdk/client/stdio.js";

const [binary, url, what] = process.argv.slice(2);

async function agent(name) {
  const client = new Client({ name, version: "1" });
  await client.connect(new StdioClientTransport({ command: binary, args: ["mcp", "--url", url] }));
  return client;
}

async function call(client, tool, args, options) {
  const result = await client.callTool({ name: tool, arguments: args }, undefined, options);
  assert(!result.isError, JSON.stringify(result));
  return result.content[0].text;
}

async function everything() {
  const [one, two] = [await agent("one"), await agent("two")];
  const tools = (await one.listTools()).tools.map((tool) => tool.name);
  assert.deepEqual(tools, ["acquire", "release", "status", "list"]);
  assert.match(await call(one, "acquire", { key: "k", purpose: "deploy" }), /^Acquired 'k'/);
  assert.match(await call(two, "acquire", { key: "k", purpose: "roll back" }), / one: deploy"/);

  const wait = { key: "k", purpose: "roll back", wait_seconds: 50 };
  // A cancelled call is out of the line.
  const end = new AbortController();
  const waiting = call(two, "acquire", wait, {
    signal: end.signal,
    onprogress: ({ total, message }) => end.abort(`${total}: ${message}`),
  });
  await assert.rejects(waiting, /50: .*place 1 of 1/);
  while (/waits in line/.test(await call(one, "status", { key: "k" }))) await sleep(10);
  await call(one, "release", { key: "k" });
  assert.match(await call(two, "status", { key: "k" }), /'k' is free/);
  // One that waits is served.
  await call(one, "acquire", { key: "k", purpose: "deploy" });
  const served = await call(two, "acquire", wait, {
    onprogress: () => call(one, "release", { key: "k" }),
  });
  assert.match(served, /^Acquired 'k'/);
  const wrong = await two.callTool({ name: "acquire", arguments: { key: "/k", purpose: "x" } });
  assert(wrong.isError && wrong.content[0].text.includes("use `k`"), JSON.stringify(wrong));
  // The other session is closed.
  await two.close();
  assert.match(await call(one, "status", { key: "k" }), /'k' is free/);
  await one.close();
}

async function hold() {
  const client = await agent("killed");
  console.log(await call(client, "acquire", { key: "k", purpose: "be killed" }));
  await sleep(1 << 30);
}

await (what === "all" ? everything() : hold());
