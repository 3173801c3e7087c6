// mcporter: its runtime holds one session for each server.
"use strict";
const path = require("node:path");
const { follow, target } = require("./driver.cjs");

async function main() {
  // It is an ES module, which NODE_PATH does not reach.
  const { createRuntime } = await import(path.join(process.env.NODE_PATH, "mcporter", "dist", "index.js"));
  const command = target.url
    ? { kind: "http", url: new URL(target.url) }
    : { kind: "stdio", command: target.command, args: target.args, cwd: process.cwd() };
  const runtime = await createRuntime({ servers: [{ name: "hub", command, env: target.env }] });
  const listTools = async () => ({ tools: await runtime.listTools("hub") });
  await follow({ listTools, close: () => runtime.close() }, (name, args) => runtime.callTool("hub", name, { args }));
  process.exit(0);
}

main();
