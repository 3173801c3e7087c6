// A server on the TypeScript SDK v2, which speaks both eras: node typescript_v2.cjs SECONDS_BEFORE_IT_READS
"use strict";
const { McpServer } = require("@modelcontextprotocol/server");
const { serveStdio } = require("@modelcontextprotocol/server/stdio");

function factory() {
  const server = new McpServer({ name: "typescript-v2", version: "1.0.0" }, { capabilities: { tools: {} } });
  server.registerTool("hello", {}, async () => ({ content: [{ type: "text", text: "hello" }] }));
  return server;
}

setTimeout(() => serveStdio(factory), 1000 * Number(process.argv[2]));
