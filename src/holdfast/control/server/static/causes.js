// Servers that fail for the same reason: one entry in the list instead of twenty.

import { copyable, el, field, setAttribute, setText, show, words } from "./dom.js";
import { sign } from "./charts.js";
import { count, duration } from "./format.js";

/** From this many servers on, equal causes are one entry. The terminal uses the same number. */
const FOLD_AT = 4;
const NAMED = 6;
let made = 0;

/**
 * The servers of a group as entries: `{ key, cause, host, servers }` for many, `{ server }` for one.
 * Servers of one host come together first; the others by their cause alone.
 */
export function folded(servers) {
  const byPlace = collect(servers, (server) => `${kind(server)}\n${hostOf(server)}`);
  const many = [...byPlace.values()].filter((members) => members.length >= FOLD_AT);
  const left = new Set(servers);
  for (const members of many) for (const server of members) left.delete(server);
  for (const members of collect([...left], kind).values()) {
    if (members.length < FOLD_AT) continue;
    many.push(members);
    for (const server of members) left.delete(server);
  }
  many.sort((one, other) => other.length - one.length);
  return [...many.map(entry), ...[...left].map((server) => ({ server }))];
}

function entry(servers) {
  const [first] = servers;
  const hosts = new Set(servers.map(hostOf));
  const host = hosts.size === 1 ? hostOf(first) : "";
  return { key: `${first.group}\n${kind(first)}\n${host}`, cause: causeOf(first), host, servers };
}

function collect(servers, keyOf) {
  const found = new Map();
  for (const server of servers) {
    const key = keyOf(server);
    if (!found.has(key)) found.set(key, []);
    found.get(key).push(server);
  }
  return found;
}

/** Equal for servers that fail alike. A server that is up but flaps is like no other. */
function kind(server) {
  const alone = server.status === "available" && !server.held.length && server.breaker.state === "closed";
  return alone ? `\n${server.id}` : `${server.status}\n${causeOf(server)}`;
}

function causeOf(server) {
  if (server.held.length) return "a changed tool is held";
  return server.cause || server.reason || server.state;
}

function hostOf({ transport, target }) {
  if (transport === "stdio") return "";
  try {
    return new URL(target).hostname;
  } catch {
    return "";
  }
}

/** The entry of one cause: what happened, to whom, what helps; its servers are listed when it is open. */
export class Cause {
  #env;
  #parts;
  #shown = "";
  #entry;
  open = false;

  /** `env` has `toggle(cause)`, `tryAll(cause)` and `now()`. */
  constructor(group, env) {
    this.#env = env;
    const id = `cause-${(made += 1)}`;
    const parts = {
      title: el("span", { class: "name" }),
      who: el("p", { class: "target" }),
      since: el("span", { class: "since", "data-span": "" }),
      action: el("p", { class: "action" }),
      command: el("div", { class: "command" }),
      retry: el("p", { class: "retry", "data-span": "" }),
      note: el("p", { class: "note", hidden: true }),
      list: el("ul", { class: "servers", id, role: "list", hidden: true }),
      act: el(
        "button",
        { type: "button", class: "act", "data-role": "operate", on: { click: () => this.#env.tryAll(this) } },
        "Try all now",
      ),
    };
    parts.opener = el(
      "button",
      {
        type: "button",
        class: "opener",
        "aria-expanded": "false",
        "aria-controls": id,
        on: { click: () => this.#env.toggle(this) },
      },
      parts.title,
    );
    parts.node = el(
      "li",
      { class: "cause", "data-group": group },
      el(
        "div",
        { class: "head" },
        el("span", { class: "sign-place" }, sign(group)),
        el(
          "div",
          { class: "words" },
          el("h3", {}, parts.opener),
          el("p", { class: "stand" }, parts.since),
          parts.who,
          parts.action,
          parts.command,
          parts.note,
        ),
        el("div", { class: "aside" }, parts.retry, parts.act),
      ),
      parts.list,
    );
    this.#parts = parts;
  }

  get node() {
    return this.#parts.node;
  }

  get list() {
    return this.#parts.list;
  }

  get opener() {
    return this.#parts.opener;
  }

  get servers() {
    return this.#entry.servers;
  }

  update(entry) {
    this.#entry = entry;
    const { title, who, action, command, opener, list, act, node } = this.#parts;
    const { servers, cause, host } = entry;
    const text = JSON.stringify([cause, host, servers.map((server) => server.id), servers[0].action]);
    setAttribute(opener, "aria-expanded", String(this.open));
    node.toggleAttribute("data-unfolded", this.open);
    show(list, this.open);
    show(
      act,
      servers.some((server) => server.status !== "available" && !server.login),
    );
    if (text === this.#shown) return this.tick(this.#env.now());
    this.#shown = text;
    const at = host && !cause.includes(host) ? ` at ${host}` : "";
    title.replaceChildren(
      field("cause.count", servers.length, count(servers.length, "server")),
      ": ",
      field("cause.text", cause, `${cause}${at}`),
    );
    setText(who, named(servers));
    const [first] = servers;
    const isNeed = first.group === "need";
    action.replaceChildren(...(isNeed ? words(first.action) : []));
    show(action, isNeed && first.action !== "");
    command.replaceChildren(
      ...(isNeed && first.command ? copyable(field("cause.command", first.command), "the command for one of them") : []),
    );
    return this.tick(this.#env.now());
  }

  tick(now) {
    const { since, retry } = this.#parts;
    const { servers } = this.#entry;
    const begun = servers.map((server) => server.since);
    const [longest, shortest] = [now - Math.min(...begun), now - Math.max(...begun)].map(duration);
    setText(since, longest === shortest ? `for ${longest}` : `for ${shortest} to ${longest}`);
    const dues = servers.map((server) => server.due).filter((due) => due !== null && due > now);
    show(retry, dues.length > 0);
    if (dues.length) setText(retry, `next try in ${duration(Math.min(...dues) - now)}`);
  }

  say(kind, text) {
    const { note } = this.#parts;
    setAttribute(note, "role", kind === "failed" ? "alert" : null);
    note.dataset.kind = kind;
    note.replaceChildren(text);
    show(note, text !== "");
  }
}

function named(servers) {
  const names = servers.slice(0, NAMED).map((server) => server.id);
  const more = servers.length - names.length;
  return more > 0 ? `${names.join(", ")} and ${more} more` : names.join(", ");
}
