// OpenAI Agents for JavaScript: one session, held by a server object.
"use strict";
const { MCPServerStdio, MCPServerStreamableHttp } = require("@openai/agents");
const { follow, target } = require("./driver.cjs");

async function main() {
  const server = target.url ? new MCPServerStreamableHttp({ url: target.url }) : new MCPServerStdio(target);
  await server.connect();
  const listTools = async () => ({ tools: await server.listTools() });
  await follow({ listTools, close: () => server.close() }, (name, args) => server.callToolResult(name, args));
  process.exit(0);
}

main();
