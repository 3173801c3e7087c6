// The TypeScript SDK v1, as its README shows.
"use strict";
const { Client } = require("@modelcontextprotocol/sdk/client/index.js");
const { StdioClientTransport } = require("@modelcontextprotocol/sdk/client/stdio.js");
const { StreamableHTTPClientTransport } = require("@modelcontextprotocol/sdk/client/streamableHttp.js");
const { follow, target } = require("./driver.cjs");

async function main() {
  const client = new Client({ name: "typescript-v1", version: "1.0.0" });
  await client.connect(
    target.url ? new StreamableHTTPClientTransport(new URL(target.url)) : new StdioClientTransport(target),
  );
  await follow(client, (name, args) => client.callTool({ name, arguments: args }));
  process.exit(0);
}

main();
