// The page: it takes the hub's events, shows the servers, and sends the user's actions to the hub.

import { readAddress, writeAddress } from "./address.js";
import { Activity } from "./activity.js";
import { Api } from "./api.js";
import { Calls } from "./calls.js";
import { Announcer } from "./announcer.js";
import { ServerList } from "./servers.js";
import { Detail } from "./detail.js";
import { setText, show } from "./dom.js";
import { Fleet } from "./fleet.js";
import { Header } from "./header.js";
import { OwnLogins } from "./own_logins.js";
import { SignIn } from "./signin.js";
import { Stream } from "./stream.js";

const api = new Api();
const fleet = new Fleet();
const header = new Header(fleet, { onFilter: filter, onRetry: () => stream.nudge() });
const announcer = new Announcer(fleet);
const board = new ServerList(document.getElementById("fleet"), { fleet, act, tryAll, onToggle });
const activity = new Activity(api);
const calls = new Calls(api);
const logins = new OwnLogins(api);
const signIn = new SignIn(api, begin);
const stream = new Stream(api, "/api/events", { onEvent: take, onTouch: (touch) => header.touch(touch) });

const AGAIN = 2000;
const AT_ONCE = 4;
const asked = new Set();
let detail = null;
let loading = null;
let loaded = false;
let news = new Map();
let timer = 0;
/** Whether the hub said who is signed in. */
let identified = false;

api.onSignedOut = () => leave("The session ended: sessions end with the hub. Sign in again.");

// Signing in and out

/** Show what the one who signed in may see: the servers with the role `read`, else only what she did herself. */
async function begin() {
  let me;
  try {
    me = await api.me();
    if (me === null) return;
  } catch {
    // The hub does not answer: the page shows that, and asks again when it does.
  }
  signIn.hide();
  identified = me !== undefined;
  if (identified) who(me);
  const reads = me?.roles.includes("read") ?? true;
  view(reads ? "board" : "own");
  if (reads) stream.start();
  else {
    document.title = "Activity · Holdfast";
    calls.follow();
  }
  activity.load();
}

function who({ principal, groups, roles, signed_in }) {
  document.body.dataset.roles = roles.join(" ");
  show(document.getElementById("who"), principal !== "");
  setText(document.getElementById("who-name"), principal.slice(principal.lastIndexOf("#") + 1));
  const told = [principal, groups.length ? `groups: ${groups.join(", ")}` : "", `roles: ${roles.join(", ") || "none"}`];
  document.getElementById("who-name").title = told.filter(Boolean).join("\n");
  show(document.getElementById("sign-out"), signed_in);
  if (principal !== "") logins.follow();
}

async function signOut() {
  try {
    await api.signOut();
    leave("You are signed out of this hub.");
  } catch (error) {
    announcer.say(`Not signed out: ${error.message}.`);
  }
}

function leave(reason = "") {
  stream.stop();
  const { server } = readAddress();
  if (board.opened !== null) board.toggle(board.opened);
  writeAddress({ server });
  activity.hide();
  show(document.getElementById("who"), false);
  calls.hide();
  logins.hide();
  view("sign-in");
  signIn.show(reason);
}

function view(name) {
  document.body.dataset.view = name;
  document.getElementById("board").hidden = name !== "board";
  document.getElementById("colophon").hidden = name !== "board";
  document.getElementById("touch").hidden = name === "own";
  if (name === "sign-in") document.title = "Sign in · Holdfast";
}

// Events of the hub

function take({ type, data }) {
  if (type === "hello") hello(data);
  else if (type === "hub") {
    header.hub(fleet.setHub(data));
    calls.load();
  }
  else if (type === "server") changed(data);
  else if (type === "gone") changed({ id: data.server, gone: true });
  else if (type === "activity") active(data);
  else if (type === "published" && data.server === board.opened) detail.republished();
  else if (type === "missed") load();
}

function hello(hub) {
  // Another version of the hub has another version of this page.
  if (fleet.hub && fleet.hub.version !== hub.version) location.reload();
  fleet.setHub(hub);
  header.hub();
  calls.load();
  load();
  if (!identified) learnWho();
}

/** Learn who is signed in, after a start without an answer of the hub. */
async function learnWho() {
  try {
    const me = await api.me();
    if (me === null) return;
    identified = true;
    who(me);
  } catch {
    // The next hello asks again.
  }
}

/** Load all servers. An event that comes meanwhile may be newer than the answer, so it is kept. */
async function load() {
  const mine = (loading = Symbol("load"));
  news = new Map();
  try {
    const { servers } = await api.get("/api/servers");
    if (loading !== mine) return;
    const newer = news;
    loading = null;
    const known = servers.filter((server) => !newer.has(server.id));
    const ids = new Set([...servers.map((server) => server.id), ...newer.keys()]);
    for (const { id } of fleet.servers) if (!ids.has(id)) fleet.remove(id);
    for (const server of known) board.put(fleet.put(server));
    loaded = true;
    flush();
    openNamed();
    announcer.begin();
  } catch {
    // The end of the stream shows that the hub is gone; if only this request failed, repeat it.
    const again = () => loading === mine && api.signedIn && stream.touch.state === "live" && load();
    setTimeout(again, 1000);
  }
}

function changed(view) {
  news.set(view.id, view);
  if (loading === null && timer === 0) timer = setTimeout(flush, 60);
}

/** New calls of servers that did not change otherwise. */
function active(activities) {
  // The open server is loaded again, because its details show more numbers.
  if (board.opened !== null && board.opened in activities) refresh(board.opened);
  for (const [id, activity] of Object.entries(activities)) {
    const known = news.get(id) ?? fleet.get(id);
    if (known && !known.gone) changed({ ...known, ...stillDue(known), activity });
  }
}

/** Load one server again: its countdown ended without an event, or its numbers changed. */
async function refresh(id) {
  if (asked.has(id)) return;
  asked.add(id);
  try {
    changed(await api.get(`/api/servers/${encodeURIComponent(id)}`));
  } catch {
    // The server or the hub is gone; the stream reports both.
  } finally {
    setTimeout(() => asked.delete(id), AGAIN);
  }
}

/** Recompute the seconds that are left, for a view that is used again. */
function stillDue(server) {
  if (server.due === undefined) return {};
  const left = (due) => (due === null ? null : Math.max(0, due - fleet.now));
  return { retry_in: left(server.due), breaker: { ...server.breaker, retry_in: left(server.breakerDue) } };
}

function flush() {
  timer = 0;
  const batch = news;
  news = new Map();
  for (const view of batch.values()) {
    if (view.gone) {
      fleet.remove(view.id);
    } else {
      const before = fleet.get(view.id);
      const server = fleet.put(view);
      announcer.note(before, server);
      board.put(server);
      if (board.opened === view.id) detail?.update();
    }
  }
  summarize();
}

function summarize() {
  if (!loaded) return;
  board.arrange();
  header.counts(board.describe());
}

/** Open the server that the address names. */
function openNamed() {
  const { server } = readAddress();
  if (server === null || board.opened !== null || !fleet.get(server)) return;
  board.toggle(server);
  board.row(server)?.node.scrollIntoView({ block: "nearest" });
}

// Actions of the user

function filter(text, only) {
  board.filter(text, only);
  writeAddress({ text: text.trim(), only });
  summarize();
}

/** Reconnect every server of one cause, a few at a time: they may share a machine that comes up slowly. */
async function tryAll(cause) {
  const waiting = cause.servers.filter((server) => !server.login).map((server) => server.id);
  const all = waiting.length;
  let good = 0;
  cause.say("busy", `Connecting ${all} servers…`);
  const work = async () => {
    for (let id = waiting.shift(); id !== undefined; id = waiting.shift()) {
      try {
        changed(await api.post(`/api/servers/${encodeURIComponent(id)}/reconnect`));
        good += 1;
      } catch {
        // Its own row shows why.
      }
      cause.say("busy", `Connecting ${all} servers: ${good} connected, ${waiting.length} to go…`);
    }
  };
  await Promise.all(Array.from({ length: AT_ONCE }, work));
  const said = good ? `${good} of ${all} connected again.` : "None of them could be connected.";
  cause.say(good ? "done" : "failed", said);
  announcer.say(said);
}

const DOING = { reconnect: "Connecting…", enable: "Enabling…", disable: "Disabling…", approve: "Approving…" };
const DONE = { reconnect: "Connected again.", enable: "Enabled.", disable: "Disabled.", approve: "Approved." };

async function act(id, verb, body) {
  const row = () => board.row(id);
  row()?.say("busy", DOING[verb]);
  try {
    const server = await api.post(`/api/servers/${encodeURIComponent(id)}/${verb}`, body);
    const done = server.scope ? `${DONE[verb].slice(0, -1)} on ${server.scope}.` : DONE[verb];
    changed(server);
    row()?.say("done", done);
    announcer.say(`${id}: ${done}`);
  } catch (error) {
    const hint = error.hint ? ` ${sentence(error.hint)}` : "";
    row()?.say("failed", `${sentence(error.message)}${hint}`);
  }
}

function sentence(text) {
  const trimmed = text.trim();
  return trimmed.charAt(0).toUpperCase() + trimmed.slice(1) + (/[.!?]$/.test(trimmed) ? "" : ".");
}

function onToggle(row, open) {
  detail?.close();
  writeAddress({ server: open ? row.server.id : null });
  detail = open ? new Detail(row, { api, fleet, act, window: () => board.window }) : null;
}

// Time

setInterval(() => {
  if (document.hidden) return;
  // Without the hub nothing is known of the time that has passed since.
  if (stream.touch.state === "live") for (const id of board.tick()) refresh(id);
  for (const server of fleet.settled()) changed({ ...server, ...stillDue(server) });
  detail?.draw();
  header.tick();
}, 1000);

document.addEventListener("visibilitychange", () => document.hidden || stream.nudge());
// A page that the browser keeps for its Back button would keep its stream too, and six of them use up all connections.
addEventListener("pagehide", () => stream.stop());
addEventListener("pageshow", (event) => event.persisted && api.signedIn && stream.start());
addEventListener("online", () => stream.nudge());
addEventListener("hashchange", () => signIn.useCode());

document.getElementById("sign-out").addEventListener("click", signOut);

header.restore(readAddress());
await signIn.useCode();
// The hub knows a browser by a cookie that no script can read, or by the gateway in front of it.
const known = document.body.dataset.view === "starting" && document.body.dataset.known === "yes";
if (api.signedIn || known) await begin();
else if (document.body.dataset.view === "starting") leave(document.getElementById("sign-in-reason").textContent);
