// LangChain's MCP adapters for JavaScript: tools are loaded once, over one session.
"use strict";
const { MultiServerMCPClient } = require("@langchain/mcp-adapters");
const { follow, target } = require("./driver.cjs");

async function main() {
  const hub = target.url ? { transport: "http", url: target.url } : { transport: "stdio", ...target };
  const client = new MultiServerMCPClient({ mcpServers: { hub }, throwOnLoadError: true });
  const tools = Object.fromEntries((await client.getTools()).map((tool) => [tool.name, tool]));
  const call = async (name, args) => {
    if (!tools[name]) throw new Error(`LangChain offers no tool ${name}`);
    return { content: [{ type: "text", text: await tools[name].invoke(args) }] };
  };
  const listTools = async () => await (await client.getClient("hub")).listTools();
  await follow({ listTools, close: () => client.close() }, call);
  process.exit(0);
}

main();
