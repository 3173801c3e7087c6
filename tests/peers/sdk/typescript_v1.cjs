// A server on the TypeScript SDK v1, which knows the legacy era: node typescript_v1.cjs SECONDS_BEFORE_IT_READS
"use strict";
const { McpServer } = require("@modelcontextprotocol/sdk/server/mcp.js");
const { StdioServerTransport } = require("@modelcontextprotocol/sdk/server/stdio.js");

const server = new McpServer({ name: "typescript-v1", version: "1.0.0" });
server.tool("hello", async () => ({ content: [{ type: "text", text: "hello" }] }));
setTimeout(() => server.connect(new StdioServerTransport()), 1000 * Number(process.argv[2]));
