// Calls one tool over and over, by raw HTTP, from some callers at a time; prints what it saw as JSON.
// node generator.mjs URL CALLERS REQUESTS ERA TOOL ARGUMENTS
import http from "node:http";

const [url, callers, requests, era, tool, args] = process.argv.slice(2);
const target = new URL(url);
const agent = new http.Agent({ keepAlive: true, maxSockets: Number(callers) });
const modern = era === "modern";
const version = modern ? "2026-07-28" : "2025-11-25";
const base = { accept: "application/json, text/event-stream", "content-type": "application/json" };

function post(message, headers) {
  const body = JSON.stringify(message);
  return new Promise((resolve, reject) => {
    const request = http.request(
      { agent, host: target.hostname, port: target.port, path: target.pathname, method: "POST",
        headers: { ...base, ...headers, "content-length": Buffer.byteLength(body) } },
      (response) => {
        const chunks = [];
        response.on("data", (chunk) => chunks.push(chunk));
        response.on("end", () => resolve({ status: response.statusCode, headers: response.headers, chunks }));
        response.on("error", reject);
      },
    );
    request.on("error", reject);
    request.end(body);
  });
}

let shared = { "mcp-protocol-version": version };
if (!modern) {
  const hello = { jsonrpc: "2.0", id: 0, method: "initialize",
    params: { protocolVersion: version, capabilities: {}, clientInfo: { name: "generator", version: "1" } } };
  const answer = await post(hello, {});
  if (answer.headers["mcp-session-id"]) shared["mcp-session-id"] = answer.headers["mcp-session-id"];
  await post({ jsonrpc: "2.0", method: "notifications/initialized" }, shared);
} else {
  shared = { ...shared, "mcp-method": "tools/call", "mcp-name": tool };
}
const meta = modern
  ? { _meta: { "io.modelcontextprotocol/protocolVersion": version, "io.modelcontextprotocol/clientCapabilities": {},
      "io.modelcontextprotocol/clientInfo": { name: "generator", version: "1" } } }
  : {};
const params = { name: tool, arguments: JSON.parse(args), ...meta };

let next = 1;
const times = [];
let bytes = 0;
async function caller(count, keep) {
  for (let turn = 0; turn < count; turn++) {
    const began = process.hrtime.bigint();
    const answer = await post({ jsonrpc: "2.0", id: next++, method: "tools/call", params }, shared);
    if (keep) times.push(Number(process.hrtime.bigint() - began) / 1e6);
    if (answer.status !== 200) throw new Error(`status ${answer.status}: ${Buffer.concat(answer.chunks)}`);
    for (const chunk of answer.chunks) bytes += chunk.length;
    if (turn === 0) {
      const text = Buffer.concat(answer.chunks).toString();
      if (!text.includes('"result"') || text.includes('"isError":true')) throw new Error(text.slice(0, 500));
    }
  }
}
const each = Math.ceil(Number(requests) / Number(callers));
const run = (count, keep) => Promise.all(Array.from({ length: Number(callers) }, () => caller(count, keep)));
await run(Math.max(5, Math.ceil(each / 10)), false);
process.stdout.write("warm\n");
await new Promise((resolve) => process.stdin.once("data", resolve));
bytes = 0;
const began = process.hrtime.bigint();
await run(each, true);
const seconds = Number(process.hrtime.bigint() - began) / 1e9;
times.sort((a, b) => a - b);
const at = (share) => times[Math.min(times.length - 1, Math.floor(times.length * share))];
process.stdout.write(JSON.stringify({ requests: times.length, seconds, rate: times.length / seconds,
  median: at(0.5), p99: at(0.99), bytes }) + "\n");
process.exit(0);
