// Mastra's MCP client.
"use strict";
const { MCPClient } = require("@mastra/mcp");
const { follow, target } = require("./driver.cjs");

async function main() {
  const client = new MCPClient({ servers: { hub: target.url ? { url: new URL(target.url) } : target } });
  const tools = async () => (await client.listToolsets()).hub ?? {};
  const call = async (name, args) => {
    const found = (await tools())[name];
    if (!found) throw new Error(`Mastra offers no tool ${name}`);
    return await found.execute(args, {});
  };
  const listTools = async () => ({ tools: Object.keys(await tools()).map((name) => ({ name })) });
  await follow({ listTools, close: () => client.disconnect() }, call);
  process.exit(0);
}

main();
