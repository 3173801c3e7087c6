// Servers that ask for a login, on Node: node node.cjs
//
// - typescript: the TypeScript SDK's own router with the provider of its examples, which agrees to everything.
// - METHOD: `oidc-provider`, whose clients authenticate by that one method; `all`: by each that it has. The clients
//   named after the methods are registered; others register themselves. Its pages ask for any name and for consent.
//
// It prints the address of each MCP endpoint, and that of a client metadata document, as one line of JSON.
// `POST /control` at an MCP endpoint's origin ends its access tokens. PATH_TLS is a folder with a certificate for the
// document; CLIENT_SECRET is the secret of the registered clients, CLIENT_JWK the public key.
"use strict";
const { readFileSync } = require("node:fs");
const https = require("node:https");
const http = require("node:http");
const { join } = require("node:path");
const express = require("express");
const { McpServer } = require("@modelcontextprotocol/sdk/server/mcp.js");
const { StreamableHTTPServerTransport } = require("@modelcontextprotocol/sdk/server/streamableHttp.js");
const { mcpAuthRouter } = require("@modelcontextprotocol/sdk/server/auth/router.js");
const { requireBearerAuth } = require("@modelcontextprotocol/sdk/server/auth/middleware/bearerAuth.js");
const { InvalidTokenError } = require("@modelcontextprotocol/sdk/server/auth/errors.js");
const { DemoInMemoryAuthProvider } = require("@modelcontextprotocol/sdk/examples/server/demoInMemoryOAuthProvider.js");
const { Provider } = require("oidc-provider");

const METHODS = ["none", "client_secret_basic", "client_secret_post", "client_secret_jwt", "private_key_jwt"];
const SCOPES = ["files:read", "files:write"];
const SECRET = process.env.CLIENT_SECRET;
const { version } = JSON.parse(readFileSync(join(process.env.NODE_PATH, "oidc-provider", "package.json")));
// The document is on this machine, which the provider's own dispatcher would not ask.
const DOCUMENTS = {
  feature: { clientIdMetadataDocument: { enabled: true, ack: "draft-02" } },
  fetch: { fetch: (url, options) => fetch(url, { ...options, dispatcher: undefined }) },
};
const documents = Number(version.split(".")[0]) >= 9 ? DOCUMENTS : {};

async function listening(server) {
  await new Promise((ready) => server.listen(0, "127.0.0.1", ready));
  return server.address().port;
}

async function answer(req, res) {
  const server = new McpServer({ name: "guarded", version: "1.0.0" });
  server.tool("hello", async () => ({ content: [{ type: "text", text: "hello" }] }));
  const transport = new StreamableHTTPServerTransport({ sessionIdGenerator: undefined });
  res.on("close", () => server.close());
  await server.connect(transport);
  await transport.handleRequest(req, res, req.body);
}

async function typescript() {
  const app = express();
  const base = `http://127.0.0.1:${await listening(http.createServer(app))}`;
  const provider = new DemoInMemoryAuthProvider();
  const resource = new URL(`${base}/mcp`);
  app.use(mcpAuthRouter({ provider, issuerUrl: new URL(base), resourceServerUrl: resource, scopesSupported: ["files:read"] }));
  const guard = { verifier: provider, requiredScopes: ["files:read"], expectedResource: resource };
  guard.resourceMetadataUrl = `${base}/.well-known/oauth-protected-resource/mcp`;
  app.post("/mcp", requireBearerAuth(guard), express.json(), answer);
  return `${base}/mcp`;
}

async function oidc(methods) {
  const app = express();
  const base = `http://127.0.0.1:${await listening(http.createServer(app))}`;
  const issuer = `${base}/op`; // under a path, as many are
  const resource = `${base}/mcp`;
  const named = (method) => ({
    client_id: `the ${method}: client`, // characters that HTTP Basic must encode
    token_endpoint_auth_method: method,
    application_type: "native",
    redirect_uris: ["http://127.0.0.1/callback", "http://localhost/callback"],
    grant_types: ["authorization_code", "refresh_token", "urn:ietf:params:oauth:grant-type:device_code"],
    ...(method.startsWith("client_secret") ? { client_secret: SECRET } : {}),
    ...(method === "private_key_jwt" ? { jwks: { keys: [JSON.parse(process.env.CLIENT_JWK)] } } : {}),
  });
  const accepted = new Set();
  const ended = new Set();
  const provider = new Provider(issuer, {
    clients: METHODS.filter((method) => methods.includes(method)).map(named),
    clientAuthMethods: methods,
    clientDefaults: { id_token_signed_response_alg: "ES256" },
    jwks: { keys: [JSON.parse(process.env.SERVER_JWK)] },
    cookies: { keys: ["a key of the test"] },
    scopes: ["openid", "offline_access"],
    pkce: { required: () => true },
    rotateRefreshToken: true,
    ...documents.fetch,
    features: {
      registration: { enabled: true },
      revocation: { enabled: true },
      deviceFlow: { enabled: true },
      mTLS: { enabled: true, tlsClientAuth: true, selfSignedTlsClientAuth: true },
      ...documents.feature,
      resourceIndicators: {
        enabled: true,
        defaultResource: () => resource,
        useGrantedResource: () => true,
        getResourceServerInfo: () => ({ scope: SCOPES.join(" "), accessTokenFormat: "opaque" }),
      },
    },
  });
  const verifier = {
    async verifyAccessToken(token) {
      const held = await provider.AccessToken.find(token);
      if (!held || ended.has(token)) throw new InvalidTokenError("it has ended");
      accepted.add(token);
      const scopes = [...held.scopes];
      return { token, clientId: held.clientId, scopes, expiresAt: held.exp, resource: new URL(held.aud) };
    },
  };
  app.post("/control", (req, res) => {
    accepted.forEach((token) => ended.add(token));
    res.json({});
  });
  const described = { resource, authorization_servers: [issuer], scopes_supported: ["files:read"] };
  app.get("/.well-known/oauth-protected-resource/mcp", (req, res) => res.json(described));
  const guard = { verifier, requiredScopes: ["files:read"], expectedResource: new URL(resource) };
  guard.resourceMetadataUrl = `${base}/.well-known/oauth-protected-resource/mcp`;
  app.post("/mcp", requireBearerAuth(guard), express.json(), answer);
  app.use("/op", provider.callback());
  return resource;
}

async function metadataDocument() {
  const folder = process.env.PATH_TLS;
  const tls = { key: readFileSync(join(folder, "server.key")), cert: readFileSync(join(folder, "server.pem")) };
  const page = (req, res) => {
    const document = {
      client_id: url,
      client_name: "Holdfast",
      application_type: "native",
      redirect_uris: ["http://127.0.0.1/callback"],
      grant_types: ["authorization_code", "refresh_token"],
      response_types: ["code"],
      token_endpoint_auth_method: "none",
    };
    res.setHeader("content-type", "application/json");
    res.end(JSON.stringify(document));
  };
  const url = `https://localhost:${await listening(https.createServer(tls, page))}/holdfast.json`;
  return url;
}

async function main() {
  const found = { typescript: await typescript(), document: await metadataDocument(), all: await oidc(METHODS) };
  for (const method of [...METHODS, "tls_client_auth"]) found[method] = await oidc([method]);
  process.stdout.write(`${JSON.stringify(found)}\n`);
}

main();
