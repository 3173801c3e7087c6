// The scenario on the TypeScript SDK of the handshake era, which knows no other: node typescript_v1.cjs URL
"use strict";
const { Client } = require("@modelcontextprotocol/sdk/client/index.js");
const { StreamableHTTPClientTransport } = require("@modelcontextprotocol/sdk/client/streamableHttp.js");
const { CreateMessageRequestSchema, ElicitRequestSchema } = require("@modelcontextprotocol/sdk/types.js");
const { elicited, scenario, finish, sampled } = require("./scenario.cjs");

async function main(url) {
  const capabilities = { elicitation: {}, sampling: {} };
  const client = new Client({ name: "typescript-v1", version: "1.0.0" }, { capabilities });
  client.setRequestHandler(ElicitRequestSchema, elicited);
  client.setRequestHandler(CreateMessageRequestSchema, sampled);
  const transport = new StreamableHTTPClientTransport(new URL(url));
  await client.connect(transport);
  const call = (name, args, options) => client.callTool({ name, arguments: args }, undefined, options);
  const report = { version: transport.protocolVersion, ...(await scenario(client, call)) };
  await transport.terminateSession();
  await client.close();
  return report;
}

finish(main(process.argv[2]));
