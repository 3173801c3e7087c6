// The TypeScript SDK v1's client of tasks: node typescript_v1_tasks.cjs URL TOOL. It prints what came, in order.
"use strict";
const { Client } = require("@modelcontextprotocol/sdk/client/index.js");
const { StreamableHTTPClientTransport } = require("@modelcontextprotocol/sdk/client/streamableHttp.js");

async function main() {
  const [url, name] = process.argv.slice(2);
  const client = new Client({ name: "tasks", version: "1.0.0" });
  await client.connect(new StreamableHTTPClientTransport(new URL(url)));
  await client.listTools();
  const came = [];
  for await (const message of client.experimental.tasks.callToolStream({ name, arguments: {} })) {
    came.push(message.type);
    if (message.type === "result") came.push(message.result.content[0].text);
    if (message.type === "error") came.push(String(message.error));
  }
  process.stdout.write(JSON.stringify(came));
  await client.close();
  process.exit(0);
}

main();
