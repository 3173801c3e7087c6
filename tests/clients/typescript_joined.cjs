// Two clients of the TypeScript SDK, one of each era, that start a program: node typescript_joined.cjs COMMAND…
// For each line on stdin, both call the tool `s__pid`, and one line with the answers is printed.
"use strict";
const readline = require("node:readline");
const { Client } = require("@modelcontextprotocol/client");
const { StdioClientTransport } = require("@modelcontextprotocol/client/stdio");

async function joined(mode) {
  const client = new Client({ name: "typescript-v2", version: "1.0.0" }, { versionNegotiation: { mode } });
  const [command, ...args] = process.argv.slice(2);
  await client.connect(new StdioClientTransport({ command, args, env: process.env }));
  return client;
}

async function main() {
  const clients = await Promise.all([joined("legacy"), joined({ pin: "2026-07-28" })]);
  for await (const _ of readline.createInterface({ input: process.stdin })) {
    const lists = await Promise.all(clients.map((client) => client.listTools()));
    const results = await Promise.all(clients.map((client) => client.callTool({ name: "s__pid", arguments: {} })));
    const said = results.map((result, index) => [result.content[0].text, lists[index].tools.length]);
    process.stdout.write(JSON.stringify(said) + "\n");
  }
  await Promise.all(clients.map((client) => client.close()));
}

main();
