// mcp-use for JavaScript: one session, held by its client.
"use strict";
const { MCPClient } = require("mcp-use");
const { follow, target } = require("./driver.cjs");

async function main() {
  const client = new MCPClient({ mcpServers: { hub: target } });
  const session = await client.createSession("hub");
  const listTools = async () => ({ tools: await session.listTools() });
  await follow({ listTools, close: () => client.closeAllSessions() }, (name, args) => session.callTool(name, args));
  process.exit(0);
}

main();
