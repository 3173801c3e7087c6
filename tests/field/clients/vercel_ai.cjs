// The MCP client of the Vercel AI SDK.
"use strict";
const { createMCPClient } = require("@ai-sdk/mcp");
const { Experimental_StdioMCPTransport } = require("@ai-sdk/mcp/mcp-stdio");
const { follow, target } = require("./driver.cjs");

async function main() {
  const client = await createMCPClient({
    transport: target.url ? { type: "http", url: target.url } : new Experimental_StdioMCPTransport(target),
  });
  const call = async (name, args) => {
    const tools = await client.tools();
    if (!tools[name]) throw new Error(`the AI SDK offers no tool ${name}`);
    return await tools[name].execute(args, { messages: [], toolCallId: "1" });
  };
  await follow(client, call);
  process.exit(0);
}

main();
