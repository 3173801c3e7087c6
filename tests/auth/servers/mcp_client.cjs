// An MCP client on the TypeScript SDK, with the OAuth of that SDK: node mcp_client.cjs
//
// It calls TOOL at URL. What the SDK asks its user to open is printed as one line of JSON; the address that her browser
// came back to is read as one line. Then it prints the text of the result.
"use strict";
const { createInterface } = require("node:readline");
const { Client } = require("@modelcontextprotocol/sdk/client/index.js");
const { StreamableHTTPClientTransport } = require("@modelcontextprotocol/sdk/client/streamableHttp.js");
const { UnauthorizedError } = require("@modelcontextprotocol/sdk/client/auth.js");

const { URL: address, TOOL } = process.env;
const BACK = "http://127.0.0.1:1/callback";

class Login {
  redirectUrl = BACK;
  // This issuer refuses a request without any scope.
  clientMetadata = { client_name: "a client", redirect_uris: [BACK], token_endpoint_auth_method: "none", scope: "openid" };
  clientInformation = () => this.client;
  saveClientInformation = (client) => { this.client = client; };
  tokens = () => this.kept;
  saveTokens = (tokens) => { this.kept = tokens; };
  codeVerifier = () => this.verifier;
  saveCodeVerifier = (verifier) => { this.verifier = verifier; };
  redirectToAuthorization = (visit) => { process.stdout.write(`${JSON.stringify({ visit: String(visit) })}\n`); };
}

async function main() {
  const authProvider = new Login();
  const transport = () => new StreamableHTTPClientTransport(new URL(address), { authProvider });
  const lines = createInterface({ input: process.stdin })[Symbol.asyncIterator]();
  const first = transport();
  try {
    await new Client({ name: "typescript", version: "1" }).connect(first);
    throw new Error("it was let in without a login");
  } catch (error) {
    if (!(error instanceof UnauthorizedError)) throw error;
  }
  const { value } = await lines.next();
  await first.finishAuth(new URL(value).searchParams.get("code"));
  const client = new Client({ name: "typescript", version: "1" });
  await client.connect(transport());
  const result = await client.callTool({ name: TOOL, arguments: { text: "hi" } });
  process.stdout.write(`${JSON.stringify({ result: result.content[0].text })}\n`);
  await client.close();
  process.exit(0);
}

main().catch((error) => {
  process.stderr.write(`${error.stack}\n`);
  process.exit(1);
});
