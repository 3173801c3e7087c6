// An MCP server of people before `oidc-provider`: node people.cjs
//
// The account of a token is the name that was typed into the provider's login page. The server has tools for each
// account alone, and tells the account's name in every result and notification. It prints its address as JSON.
// `POST /control` with `{"end": true}` ends the access tokens that it saw; it answers what was called, by whom, and how
// often a refresh token came again after it was used.
"use strict";
const http = require("node:http");
const express = require("express");
const { Server } = require("@modelcontextprotocol/sdk/server/index.js");
const { StreamableHTTPServerTransport } = require("@modelcontextprotocol/sdk/server/streamableHttp.js");
const { requireBearerAuth } = require("@modelcontextprotocol/sdk/server/auth/middleware/bearerAuth.js");
const { InvalidTokenError } = require("@modelcontextprotocol/sdk/server/auth/errors.js");
const { CallToolRequestSchema, ListToolsRequestSchema } = require("@modelcontextprotocol/sdk/types.js");
const { Provider } = require("oidc-provider");

const seen = { calls: [], reuses: 0 };
const added = new Map(); // how many tools an account has beside the usual ones

function serverOf(person) {
  const capabilities = { tools: { listChanged: true }, logging: {} };
  const server = new Server({ name: "people", version: "1.0.0" }, { capabilities });
  server.setRequestHandler(ListToolsRequestSchema, () => {
    const more = [...Array(added.get(person) ?? 0).keys()].map((number) => `new${number}_of_${person}`);
    const names = ["read", `of_${person}`, ...more];
    return { tools: names.map((name) => ({ name, inputSchema: { type: "object" } })) };
  });
  server.setRequestHandler(CallToolRequestSchema, async (request, extra) => {
    const { name, arguments: given = {}, _meta: meta } = request.params;
    seen.calls.push({ person, who: given.who });
    const tell = (method, params) => extra.sendNotification({ method: `notifications/${method}`, params });
    await tell("message", { level: "error", data: `a log line for ${person}` });
    const progressToken = meta?.progressToken;
    if (progressToken !== undefined)
      await tell("progress", { progressToken, progress: 1, message: `progress for ${person}` });
    if (given.change) {
      added.set(person, (added.get(person) ?? 0) + 1);
      await tell("tools/list_changed");
    }
    const text = `${name} done for ${person}\n`.repeat(given.times ?? 1);
    return { content: [{ type: "text", text }] };
  });
  return server;
}

async function main() {
  const app = express();
  const listener = http.createServer(app);
  await new Promise((ready) => listener.listen(0, "127.0.0.1", ready));
  const base = `http://127.0.0.1:${listener.address().port}`;
  const issuer = `${base}/op`;
  const resource = `${base}/mcp`;
  const accepted = new Set();
  const ended = new Set();
  const provider = new Provider(issuer, {
    clientAuthMethods: ["none"],
    clientDefaults: { id_token_signed_response_alg: "ES256" },
    jwks: { keys: [JSON.parse(process.env.SERVER_JWK)] },
    cookies: { keys: ["a key of the test"] },
    scopes: ["openid", "offline_access"],
    pkce: { required: () => true },
    rotateRefreshToken: true,
    features: {
      registration: { enabled: true },
      revocation: { enabled: true },
      resourceIndicators: {
        enabled: true,
        defaultResource: () => resource,
        useGrantedResource: () => true,
        getResourceServerInfo: () => ({ scope: "files:read", accessTokenFormat: "opaque" }),
      },
    },
  });
  provider.on("grant.error", (ctx, error) => {
    if (/already used/.test(error.error_detail)) seen.reuses += 1;
  });
  const verifier = {
    async verifyAccessToken(token) {
      const held = await provider.AccessToken.find(token);
      if (!held || ended.has(token)) throw new InvalidTokenError("it has ended");
      accepted.add(token);
      const known = { token, clientId: held.clientId, scopes: [...held.scopes], expiresAt: held.exp };
      return { ...known, resource: new URL(held.aud), extra: { person: held.accountId } };
    },
  };
  app.post("/control", express.json(), (req, res) => {
    if (req.body.end) accepted.forEach((token) => ended.add(token));
    res.json(seen);
  });
  const described = { resource, authorization_servers: [issuer], scopes_supported: ["files:read"] };
  app.get("/.well-known/oauth-protected-resource/mcp", (req, res) => res.json(described));
  const guard = { verifier, requiredScopes: ["files:read"], expectedResource: new URL(resource) };
  guard.resourceMetadataUrl = `${base}/.well-known/oauth-protected-resource/mcp`;
  app.post("/mcp", requireBearerAuth(guard), express.json(), async (req, res) => {
    const server = serverOf(req.auth.extra.person);
    const transport = new StreamableHTTPServerTransport({ sessionIdGenerator: undefined });
    res.on("close", () => server.close());
    await server.connect(transport);
    await transport.handleRequest(req, res, req.body);
  });
  app.use("/op", provider.callback());
  process.stdout.write(`${JSON.stringify({ people: resource })}\n`);
}

main();
