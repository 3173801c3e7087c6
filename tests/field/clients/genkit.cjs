// Genkit: one client; it names tools by the name that the hub gives itself.
"use strict";
const { createMcpClient } = require("@genkit-ai/mcp");
const { genkit } = require("genkit");
const { follow, target } = require("./driver.cjs");

const PREFIX = "holdfast/";

async function main() {
  const ai = genkit({});
  const client = createMcpClient({ name: "hub", mcpServer: target, rawToolResponses: true });
  await client.ready();
  const tools = async () => await client.getActiveTools(ai);
  const call = async (name, args) => {
    const found = (await tools()).find((tool) => tool.__action.name === `${PREFIX}${name}`);
    if (!found) throw new Error(`Genkit offers no tool ${name}`);
    return await found(args);
  };
  const listTools = async () => ({
    tools: (await tools()).map((tool) => ({ name: tool.__action.name.replace(PREFIX, "") })),
  });
  await follow({ listTools, close: () => client.disable() }, call);
  process.exit(0);
}

main();
