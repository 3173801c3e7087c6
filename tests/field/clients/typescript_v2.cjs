// The TypeScript SDK v2, as its README shows.
"use strict";
const { Client, StreamableHTTPClientTransport } = require("@modelcontextprotocol/client");
const { follow, target } = require("./driver.cjs");

async function main() {
  const client = new Client(
    { name: "typescript-v2", version: "1.0.0" },
    { versionNegotiation: { mode: target.mode === "legacy" ? "legacy" : "auto" } },
  );
  let transport;
  if (target.url) {
    transport = new StreamableHTTPClientTransport(new URL(target.url));
  } else {
    const { StdioClientTransport } = require("@modelcontextprotocol/client/stdio");
    transport = new StdioClientTransport(target);
  }
  await client.connect(transport);
  await follow(client, (name, args) => client.callTool({ name, arguments: args }));
  process.exit(0);
}

main();
