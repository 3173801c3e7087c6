// Calls one tool over and over from some callers at a time, and prints what it saw as JSON.
//
// node generator.mjs '{"url", "callers", "requests", "seconds", "era", "method", "tool", "arguments", …}'
//
// Each caller has a connection and, in the legacy era, a session of its own, and sends one call after the other. HTTP is
// written and read by hand on plain sockets: Node's own client takes four times the CPU, which the subject would miss.
// It prints `warm` after some calls that do not count, makes as many calls for each line `go` on stdin, and leaves at
// the end of stdin. Several addresses, with commas between them, get the callers in turns.
import net from "node:net";
import readline from "node:readline";

const options = JSON.parse(process.argv[2]);
const { callers, requests, seconds = 60, era = "legacy", method = "tools/call", tool = "echo", progress = false } = options;
const targets = options.url.split(",").map((url) => new URL(url));
const modern = era === "modern";
const version = modern ? "2026-07-28" : "2025-11-25";

const given = Object.entries(options.headers ?? {}).map(([name, value]) => `${name}: ${value}\r\n`).join("");
const headOf = (target) => `POST ${target.pathname} HTTP/1.1\r\nhost: ${target.host}\r\ncontent-type: application/json\r\n` +
  `accept: application/json, text/event-stream\r\n${given}`;

/** One keep-alive connection: one request at a time, and its whole answer. */
class Connection {
  constructor(target) {
    this.target = target;
    this.opening = headOf(target);
    this.connect();
  }

  connect() {
    this.parts = [];
    this.length = 0;
    const socket = net.connect({ host: this.target.hostname, port: Number(this.target.port), noDelay: true });
    socket.on("data", (data) => this.read(data));
    socket.on("error", () => {});
    socket.on("close", () => this.socket === socket && this.closed());
    this.socket = socket;
  }

  post(message, headers) {
    const body = JSON.stringify(message);
    const request = `${this.opening}${headers}content-length: ${Buffer.byteLength(body)}\r\n\r\n${body}`;
    this.wanted = null;
    if (!this.socket.writable) this.connect(); // servers close connections that were idle while others were measured
    return new Promise((resolve, reject) => {
      [this.resolve, this.reject, this.again] = [resolve, reject, request];
      this.socket.write(request);
    });
  }

  /** The server closed an idle connection just when a request was sent: it is sent once more. */
  closed() {
    if (!this.reject) return;
    if (this.length || !this.again) return this.reject(new Error("the connection was closed within an answer"));
    const request = this.again;
    this.again = null;
    this.connect();
    this.socket.write(request);
  }

  read(data) {
    this.parts.push(data);
    this.length += data.length;
    if (this.wanted === null) this.readHead();
    if (this.wanted === "chunked" ? this.endsChunked(data) : this.wanted !== null && this.length >= this.wanted) this.done();
  }

  readHead() {
    const all = this.parts.length === 1 ? this.parts[0] : Buffer.concat(this.parts);
    const end = all.indexOf("\r\n\r\n");
    if (end < 0) return;
    this.parts = [all];
    this.head = all.latin1Slice(0, end);
    this.status = Number(this.head.slice(9, 12));
    this.body = end + 4;
    const sized = /\ncontent-length: *(\d+)/i.exec(this.head);
    if (sized) this.wanted = this.body + Number(sized[1]);
    else this.wanted = /\ntransfer-encoding: *chunked/i.test(this.head) ? "chunked" : this.body;
  }

  /** Whether the last chunk is there. No answer of ours holds these bytes within. */
  endsChunked(data) {
    const tail = data.length >= 7 ? data : Buffer.concat(this.parts).subarray(-7);
    return tail.subarray(-5).latin1Slice() === "0\r\n\r\n" && this.length > this.body;
  }

  done() {
    const answer = { status: this.status, head: this.head, bytes: this.length - this.body, parts: this.parts };
    const resolve = this.resolve;
    this.parts = [];
    this.length = 0;
    this.resolve = this.reject = null;
    resolve(answer);
  }
}

/** One caller: its connection, its session and its calls. */
class Caller {
  constructor(number) {
    this.number = number;
    this.connection = new Connection(targets[number % targets.length]);
    this.headers = `mcp-protocol-version: ${version}\r\n`;
    if (modern) this.headers += `mcp-method: ${method}\r\n` + (method === "tools/call" ? `mcp-name: ${tool}\r\n` : "");
    this.next = 1;
  }

  async greet() {
    if (modern) return;
    const params = { protocolVersion: version, capabilities: {}, clientInfo: { name: "generator", version: "1" } };
    const answer = await this.connection.post({ jsonrpc: "2.0", id: 0, method: "initialize", params }, "");
    if (answer.status !== 200) throw new Error(`initialize: ${answer.status} ${text(answer)}`);
    const session = /\nmcp-session-id: *(\S+)/i.exec(answer.head);
    if (session) this.headers += `mcp-session-id: ${session[1]}\r\n`;
    await this.connection.post({ jsonrpc: "2.0", method: "notifications/initialized" }, this.headers);
  }

  /** End the session, as a well-behaved client does. */
  leave() {
    this.connection.socket.end(`${this.connection.opening.replace("POST", "DELETE")}${this.headers}content-length: 0\r\n\r\n`);
  }

  call() {
    const id = this.next++;
    const meta = modern
      ? { "io.modelcontextprotocol/protocolVersion": version, "io.modelcontextprotocol/clientCapabilities": {},
          "io.modelcontextprotocol/clientInfo": { name: "generator", version: "1" } }
      : {};
    if (progress) meta.progressToken = `${this.number}-${id}`;
    const params = method === "tools/call" ? { name: tool, arguments: options.arguments ?? { text: "hello" } } : {};
    if (modern || progress) params._meta = meta;
    return this.connection.post({ jsonrpc: "2.0", id, method, params }, this.headers);
  }
}

const text = (answer) => Buffer.concat(answer.parts).toString().slice(0, 600);

function check(answer) {
  const said = Buffer.concat(answer.parts).toString();
  if (answer.status !== 200) throw new Error(`status ${answer.status}: ${said.slice(0, 600)}`);
  if (!said.includes('"result"') || /"isError": ?true/.test(said)) throw new Error(said.slice(0, 600));
  return said.split("notifications/progress").length - 1;
}

const all = Array.from({ length: callers }, (_, number) => new Caller(number));
for (const caller of all) await caller.greet();

const times = [];
let bytes = 0, notices = 0, expected = 0;
async function run(caller, count, until, keep) {
  for (let turn = 0; turn < count && performance.now() < until; turn++) {
    const began = performance.now();
    const answer = await caller.call();
    if (keep) times.push(performance.now() - began);
    if (answer.status !== 200) throw new Error(`status ${answer.status}: ${text(answer)}`);
    bytes += answer.bytes;
    // Reading every answer would take the CPU that the subject needs: the first is read, the others are as long.
    if (!keep && turn === 0) [expected, notices] = [answer.bytes, check(answer)];
    else if (Math.abs(answer.bytes - expected) > expected * 0.1 + 20) throw new Error(`another answer (${check(answer)} notices, ${answer.bytes} bytes where ${expected} came): ${text(answer).slice(-200)}`);
  }
}

const each = Math.max(1, Math.ceil(requests / callers));
async function batch(count, until, keep) {
  const late = setTimeout(() => { throw new Error("no answer for a minute"); }, seconds * 1000 + 60_000);
  await Promise.all(all.map((caller) => run(caller, count, until, keep)));
  clearTimeout(late);
}
await batch(Math.max(2, options.warm ?? each), performance.now() + seconds * 1000, false);
process.stdout.write("warm\n");

for await (const line of readline.createInterface({ input: process.stdin })) {
  if (line !== "go") break;
  times.length = bytes = 0;
  const before = process.cpuUsage();
  const began = performance.now();
  await batch(each, began + seconds * 1000, true);
  const lasted = (performance.now() - began) / 1000;
  const used = process.cpuUsage(before);
  process.stdout.write(JSON.stringify({ seconds: lasted, times: times.map((time) => Number(time.toFixed(4))), bytes,
    notices, cpu: (used.user + used.system) / 1e6 }) + "\n");
}
if (!modern) for (const caller of all) caller.leave();
setTimeout(() => process.exit(0), 100);
