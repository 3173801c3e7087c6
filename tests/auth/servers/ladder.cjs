// A user's ladder of credentials, on `oidc-provider`: node ladder.cjs
//
// - issuer: the issuer of a hub at HUB. Its clients sign people in there (`holdfast`, with CLIENT_SECRET). It exchanges
//   tokens for the hub into tokens for the MCP server (RFC 8693, and the on-behalf-of form of Microsoft Entra ID), and
//   ID tokens into identity assertions for `authority` (ID-JAG).
// - authority: the authorization server of the MCP server. It takes those assertions (RFC 7523), and lets people log in.
// - mcp: an MCP server that takes tokens of both. Its tools say whose token it saw, and of which issuer.
//
// The grants are registered with the providers, which authenticate the clients and issue the tokens. It prints the
// addresses as one line of JSON. `POST /control` changes what happens: {"hubToken": {…}} returns a token for the hub,
// {"seconds": {…}} sets lifetimes, {"refuse": {…}} the errors of grants, {"say": {…}} what answers contain instead,
// {"redirect": URL} sends token requests there, {"end": true} ends all tokens; {"seen": true} returns what was seen.
"use strict";
const crypto = require("node:crypto");
const http = require("node:http");
const express = require("express");
const jose = require("jose");
const { McpServer } = require("@modelcontextprotocol/sdk/server/mcp.js");
const { StreamableHTTPServerTransport } = require("@modelcontextprotocol/sdk/server/streamableHttp.js");
const { requireBearerAuth } = require("@modelcontextprotocol/sdk/server/auth/middleware/bearerAuth.js");
const { InvalidTokenError } = require("@modelcontextprotocol/sdk/server/auth/errors.js");
const { Provider, errors } = require("oidc-provider");

const { HUB, CLIENT_SECRET, SERVER_JWK } = process.env;
const EXCHANGE = "urn:ietf:params:oauth:grant-type:token-exchange";
const BEARER = "urn:ietf:params:oauth:grant-type:jwt-bearer";
const TYPE = "urn:ietf:params:oauth:token-type:";
const FIELDS = ["subject_token", "subject_token_type", "requested_token_type", "requested_token_use", "assertion",
  "audience", "resource", "scope"];
const FIRST = { seconds: {}, refuse: {}, say: {}, redirect: "" };
const state = { ...FIRST, seen: [], used: new Set(), ended: new Set(), accepted: new Set() };

async function listening(server) {
  await new Promise((ready) => server.listen(0, "127.0.0.1", ready));
  return `http://127.0.0.1:${server.address().port}`;
}

function client(id, more = {}) {
  return {
    client_id: id,
    client_secret: CLIENT_SECRET,
    token_endpoint_auth_method: "client_secret_basic",
    redirect_uris: [`${HUB}/signin/callback`],
    grant_types: ["authorization_code", "refresh_token", EXCHANGE, BEARER],
    response_types: ["code"],
    ...more,
  };
}

function settings(key, clients, resources) {
  return {
    clients,
    clientDefaults: { id_token_signed_response_alg: "ES256" },
    jwks: { keys: [key] },
    cookies: { keys: ["a key of the test"] },
    scopes: ["openid", "offline_access"],
    pkce: { required: () => true },
    rotateRefreshToken: true,
    issueRefreshToken: async (_, one) => one.grantTypeAllowed("refresh_token"),
    ttl: {
      AccessToken: () => state.seconds.access ?? 3600,
      IdToken: () => state.seconds.id ?? 3600,
      RefreshToken: () => 86400,
    },
    findAccount: (_, name) => ({ accountId: state.say.sub ?? name, claims: async () => ({ sub: name }) }),
    features: {
      registration: { enabled: true },
      revocation: { enabled: true },
      resourceIndicators: {
        enabled: true,
        defaultResource: () => resources.fallback,
        useGrantedResource: () => true,
        getResourceServerInfo: (_, resource) => ({
          scope: "files:read files:write",
          audience: resource,
          accessTokenFormat: "jwt",
          jwt: { sign: { alg: "ES256" } },
        }),
      },
    },
  };
}

function refused(code) {
  const error = new errors.OIDCProviderError(400, code);
  error.error_description = "the test says so";
  return error;
}

function noted(grant, ctx) {
  const given = Object.fromEntries(FIELDS.map((name) => [name, ctx.oidc.params[name]]).filter(([, one]) => one));
  state.seen.push({ grant, client: ctx.oidc.client.clientId, at: ctx.oidc.issuer ?? "", ...given });
  if (state.refuse[grant]) throw refused(state.refuse[grant]);
}

async function verified(token, keys, checks) {
  try {
    return (await jose.jwtVerify(token, keys, checks)).payload;
  } catch (error) {
    throw new errors.InvalidGrant(`the subject's token is not valid (${error.code})`);
  }
}

async function issue(provider, ctx, account, resource) {
  const { AccessToken, ResourceServer } = provider;
  const token = new AccessToken({ accountId: account, client: ctx.oidc.client, scope: "files:read", gty: "exchange" });
  const info = { scope: "files:read files:write", accessTokenFormat: "jwt", jwt: { sign: { alg: "ES256" } } };
  token.resourceServer = new ResourceServer(resource, { ...info, audience: state.say.audience ?? resource });
  const value = await token.save();
  ctx.body = {
    access_token: value,
    issued_token_type: `${TYPE}access_token`,
    token_type: "Bearer",
    expires_in: token.expiration,
    scope: token.scope,
  };
}

async function main() {
  const app = { issuer: express(), authority: express(), mcp: express() };
  const base = {};
  for (const name of Object.keys(app)) base[name] = await listening(http.createServer(app[name]));
  const resource = `${base.mcp}/mcp`;
  const key = JSON.parse(SERVER_JWK);
  const other = await jose.exportJWK((await jose.generateKeyPair("ES256", { extractable: true })).privateKey);
  const signs = await jose.importJWK({ ...key, alg: "ES256" });
  const keys = { issuer: jose.createLocalJWKSet({ keys: [publicPart(key)] }) };
  keys.authority = jose.createLocalJWKSet({ keys: [publicPart({ ...other, kid: "authority" })] });

  const issuer = new Provider(base.issuer, settings(key, [client("holdfast")], { fallback: undefined }));
  const hub = `${HUB}/mcp`;
  issuer.registerGrantType(EXCHANGE, async (ctx) => {
    const { params, client: asking } = ctx.oidc;
    const asserts = params.requested_token_type === `${TYPE}id-jag`;
    noted(asserts ? "id-jag" : "exchange", ctx);
    const subject = { issuer: base.issuer, audience: asserts ? asking.clientId : hub };
    const claims = await verified(params.subject_token, keys.issuer, subject);
    if (!asserts) {
      if (params.resource !== resource) throw new errors.InvalidTarget();
      await issue(issuer, ctx, claims.sub, resource);
      return;
    }
    if (params.audience !== base.authority) throw new errors.InvalidTarget();
    const assertion = await new jose.SignJWT({ client_id: "hub-at-authority", resource: params.resource })
      .setProtectedHeader({ alg: "ES256", kid: key.kid, typ: "oauth-id-jag+jwt" })
      .setIssuer(base.issuer).setSubject(claims.sub).setAudience(state.say.assertionFor ?? params.audience)
      .setJti(crypto.randomUUID()).setIssuedAt().setExpirationTime("60s").sign(signs);
    ctx.body = {
      access_token: assertion, issued_token_type: params.requested_token_type, token_type: "N_A", expires_in: 60,
    };
  }, FIELDS);
  issuer.registerGrantType(BEARER, async (ctx) => {
    noted("on-behalf-of", ctx);
    const { params } = ctx.oidc;
    if (params.requested_token_use !== "on_behalf_of" || !params.scope) throw new errors.InvalidRequest();
    const claims = await verified(params.assertion, keys.issuer, { issuer: base.issuer, audience: hub });
    await issue(issuer, ctx, claims.sub, resource);
  }, FIELDS);

  const authority = new Provider(
    base.authority,
    settings(
      { ...other, kid: "authority", use: "sig" },
      [client("hub-at-authority", { grant_types: ["authorization_code", "refresh_token", BEARER] })],
      { fallback: resource },
    ),
  );
  authority.registerGrantType(BEARER, async (ctx) => {
    noted("jwt-bearer", ctx);
    const { params, client: asking } = ctx.oidc;
    const checks = { issuer: base.issuer, audience: base.authority, typ: "oauth-id-jag+jwt" };
    const claims = await verified(params.assertion, keys.issuer, checks);
    if (claims.client_id !== asking.clientId) throw new errors.InvalidGrant("it was given to another client");
    if (state.used.has(claims.jti)) throw new errors.InvalidGrant("it was used before");
    state.used.add(claims.jti);
    await issue(authority, ctx, claims.sub, claims.resource);
  }, FIELDS);

  const verifier = {
    async verifyAccessToken(token) {
      for (const name of ["issuer", "authority"]) {
        try {
          const { payload } = await jose.jwtVerify(token, keys[name], { issuer: base[name], audience: resource });
          if (state.ended.has(payload.jti)) break;
          state.accepted.add(payload.jti);
          const extra = { person: payload.sub, by: name };
          return { token, clientId: payload.client_id, scopes: ["files:read"], expiresAt: payload.exp, extra };
        } catch {
          continue;
        }
      }
      throw new InvalidTokenError("it is not for this server, or has ended");
    },
  };
  const described = { resource, authorization_servers: [base.authority], scopes_supported: ["files:read"] };
  app.mcp.get("/.well-known/oauth-protected-resource/mcp", (_, res) => res.json(described));
  const guard = { verifier, requiredScopes: ["files:read"] };
  guard.resourceMetadataUrl = `${base.mcp}/.well-known/oauth-protected-resource/mcp`;
  app.mcp.use((req, _, next) => {
    if (req.path === "/mcp") state.seen.push({ grant: "mcp", authorization: req.headers.authorization ?? "" });
    next();
  });
  app.mcp.post("/mcp", requireBearerAuth(guard), express.json(), answer);
  app.mcp.post("/control", express.json(), async (req, res) => {
    const { hubToken, end, seen, ...more } = req.body;
    Object.assign(state, more);
    if (end) state.accepted.forEach((jti) => state.ended.add(jti));
    if (!hubToken) return res.json(seen ? state.seen.splice(0) : {});
    const now = Math.floor(Date.now() / 1000);
    const token = await new jose.SignJWT({ scope: "tools:read", jti: crypto.randomUUID() })
      .setProtectedHeader({ alg: "ES256", kid: key.kid, typ: "at+jwt" })
      .setIssuer(base.issuer).setSubject(hubToken.person).setAudience(hubToken.audience ?? hub)
      .setIssuedAt(now).setExpirationTime(now + (hubToken.seconds ?? 3600)).sign(signs);
    return res.json({ token });
  });
  for (const [name, provider] of Object.entries({ issuer, authority })) {
    app[name].post("/token", (req, res, next) => (state.redirect ? res.redirect(307, state.redirect) : next()));
    app[name].use(provider.callback());
  }
  process.stdout.write(`${JSON.stringify({ ...base, mcp: resource })}\n`);
}

function publicPart({ d, ...rest }) {
  return { ...rest, alg: "ES256" };
}

async function answer(req, res) {
  const { person, by } = req.auth.extra;
  const server = new McpServer({ name: "tracker", version: "1.0.0" });
  server.tool("whoami", async () => ({ content: [{ type: "text", text: `${person} by ${by}` }] }));
  server.tool(`of_${person}`, async () => ({ content: [{ type: "text", text: `of ${person}` }] }));
  const transport = new StreamableHTTPServerTransport({ sessionIdGenerator: undefined });
  res.on("close", () => server.close());
  await server.connect(transport);
  await transport.handleRequest(req, res, req.body);
}

main();
