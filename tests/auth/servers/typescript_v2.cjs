// A server on the TypeScript SDK v2 that asks for a login, with the router of `server-legacy`: node typescript_v2.cjs
//
// Its provider keeps everything in memory, agrees to everything, and rotates refresh tokens. It prints the address of
// its MCP endpoint as one line of JSON. `POST /control` ends the access tokens.
"use strict";
const { randomUUID } = require("node:crypto");
const http = require("node:http");
const express = require("express");
const { McpServer } = require("@modelcontextprotocol/server");
const { NodeStreamableHTTPServerTransport } = require("@modelcontextprotocol/node");
const { mcpAuthRouter, requireBearerAuth, InvalidTokenError, InvalidGrantError } = require("@modelcontextprotocol/server-legacy/auth");

class MemoryProvider {
  constructor() {
    this.clients = new Map();
    this.codes = new Map();
    this.access = new Map();
    this.refresh = new Map();
    this.clientsStore = {
      getClient: async (id) => this.clients.get(id),
      registerClient: async (client) => (this.clients.set(client.client_id, client), client),
    };
  }

  async authorize(client, params, res) {
    const code = randomUUID();
    this.codes.set(code, { client: client.client_id, ...params });
    const back = new URL(params.redirectUri);
    back.searchParams.set("code", code);
    if (params.state) back.searchParams.set("state", params.state);
    res.redirect(back.href);
  }

  async challengeForAuthorizationCode(client, code) {
    if (!this.codes.has(code)) throw new InvalidGrantError("no such code");
    return this.codes.get(code).codeChallenge;
  }

  async exchangeAuthorizationCode(client, code) {
    const { scopes, resource } = this.codes.get(code);
    this.codes.delete(code);
    return this.issue(client, scopes ?? [], resource);
  }

  async exchangeRefreshToken(client, token) {
    const held = this.refresh.get(token);
    if (!held) throw new InvalidGrantError("no such refresh token");
    this.refresh.delete(token);
    return this.issue(client, held.scopes, held.resource);
  }

  issue(client, scopes, resource) {
    const [access, refresh] = [randomUUID(), randomUUID()];
    const held = { clientId: client.client_id, scopes, resource, expiresAt: Math.floor(Date.now() / 1000) + 3600 };
    this.access.set(access, { token: access, ...held });
    this.refresh.set(refresh, held);
    return { access_token: access, refresh_token: refresh, token_type: "bearer", expires_in: 3600, scope: scopes.join(" ") };
  }

  async verifyAccessToken(token) {
    if (!this.access.has(token)) throw new InvalidTokenError("no such token");
    return this.access.get(token);
  }

  async revokeToken(client, request) {
    this.access.delete(request.token);
    this.refresh.delete(request.token);
  }
}

async function answer(req, res) {
  const server = new McpServer({ name: "guarded", version: "1.0.0" });
  server.registerTool("hello", {}, async () => ({ content: [{ type: "text", text: "hello" }] }));
  const transport = new NodeStreamableHTTPServerTransport({ sessionIdGenerator: undefined });
  res.on("close", () => server.close());
  await server.connect(transport);
  await transport.handleRequest(req, res, req.body);
}

const app = express();
const server = http.createServer(app).listen(0, "127.0.0.1", () => {
  const base = `http://127.0.0.1:${server.address().port}`;
  const provider = new MemoryProvider();
  const resourceServerUrl = new URL(`${base}/mcp`);
  app.use(mcpAuthRouter({ provider, issuerUrl: new URL(base), resourceServerUrl, scopesSupported: ["files:read"] }));
  app.post("/control", (req, res) => {
    provider.access.clear();
    res.json({});
  });
  const resourceMetadataUrl = `${base}/.well-known/oauth-protected-resource/mcp`;
  app.post("/mcp", requireBearerAuth({ verifier: provider, requiredScopes: ["files:read"], resourceMetadataUrl }), express.json(), answer);
  process.stdout.write(`${JSON.stringify({ "typescript-v2": `${base}/mcp` })}\n`);
});
