// The scenario on the TypeScript SDK that knows both eras: node typescript_v2.cjs URL legacy|modern
"use strict";
const { Client, StreamableHTTPClientTransport } = require("@modelcontextprotocol/client");
const { elicited, scenario, finish, sampled } = require("./scenario.cjs");

async function main(url, era) {
  const client = new Client(
    { name: "typescript-v2", version: "1.0.0" },
    {
      capabilities: { elicitation: {}, sampling: {} },
      versionNegotiation: { mode: era === "modern" ? { pin: "2026-07-28" } : "legacy" },
    },
  );
  client.setRequestHandler("elicitation/create", elicited);
  client.setRequestHandler("sampling/createMessage", sampled);
  await client.connect(new StreamableHTTPClientTransport(new URL(url)));
  const call = (name, args, options) => client.callTool({ name, arguments: args }, options);
  const report = await scenario(client, call);
  await client.close();
  return report;
}

finish(main(process.argv[2], process.argv[3]));
