// An issuer for a hub, on `oidc-provider`: node issuer.cjs
//
// HUB is the address of the hub. Two clients sign people in there: `holdfast`, with CLIENT_SECRET, and `holdfast-public`
// without a secret. MCP clients register themselves, and get JWTs for the resource that they name. Its pages ask for any
// name and for consent; `ada` is in the group `sre`, `bob` in `dev`.
"use strict";
const http = require("node:http");
const { Provider } = require("oidc-provider");

const GROUPS = { ada: ["sre"], bob: ["dev"], crowd: Array.from({ length: 2000 }, (_, at) => `group-${at * 7919}`) };
const { HUB, CLIENT_SECRET, SERVER_JWK } = process.env;

function client(id, method) {
  return {
    client_id: id,
    token_endpoint_auth_method: method,
    ...(method === "none" ? {} : { client_secret: CLIENT_SECRET }),
    redirect_uris: [`${HUB}/signin/callback`],
    grant_types: ["authorization_code"],
    response_types: ["code"],
  };
}

function about(name) {
  return { oid: `oid-${name}`, groups: GROUPS[name] ?? [] };
}

async function main() {
  const server = http.createServer((req, res) => serve(req, res));
  await new Promise((ready) => server.listen(0, "127.0.0.1", ready));
  const issuer = `http://127.0.0.1:${server.address().port}`;
  const provider = new Provider(issuer, {
    clients: [client("holdfast", "client_secret_basic"), client("holdfast-public", "none")],
    clientDefaults: { id_token_signed_response_alg: "ES256" },
    jwks: { keys: [JSON.parse(SERVER_JWK)] },
    cookies: { keys: ["a key of the test"] },
    scopes: ["openid", "offline_access"],
    claims: { openid: ["sub", "oid", "groups"] },
    conformIdTokenClaims: false,
    pkce: { required: () => true },
    findAccount: (_, name) => ({ accountId: name, claims: async () => ({ sub: name, ...about(name) }) }),
    extraTokenClaims: (_, token) => about(token.accountId),
    features: {
      registration: { enabled: true },
      resourceIndicators: {
        enabled: true,
        defaultResource: () => undefined,
        useGrantedResource: () => true,
        getResourceServerInfo: (_, resource) => ({
          scope: "tools:read tools:write",
          audience: resource,
          accessTokenFormat: "jwt",
          jwt: { sign: { alg: "ES256" } },
        }),
      },
    },
  });
  const serve = provider.callback();
  process.stdout.write(`${JSON.stringify({ issuer })}\n`);
}

main();
