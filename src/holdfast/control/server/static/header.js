// The header and the footer: the state of the fleet in one sentence, the connection to the hub, and the hub's data.

import { copyable, el, field, sentence, setAttribute, setText, show } from "./dom.js";
import { GROUPS, byId } from "./fleet.js";
import { sign } from "./charts.js";
import { clock, countdown, duration } from "./format.js";

export class Header {
  #fleet;
  #onFilter;
  #onRetry;
  #only = null;
  #chips = new Map();
  #touch = { state: "connecting" };
  #uptime = null;
  #lostBanner = null;
  #loaded = false;

  constructor(fleet, { onFilter, onRetry }) {
    this.#fleet = fleet;
    this.#onFilter = onFilter;
    this.#onRetry = onRetry;
    const input = at("filter");
    input.addEventListener("input", () => this.#filter());
    input.addEventListener("keydown", (event) => event.key === "Escape" && this.#clear(input));
    for (const group of GROUPS) at("chips").append(this.#chip(group));
  }

  #chip({ key, title }) {
    const number = field(`count.${key}`, 0, "0", "span", { class: "number" });
    const chip = el(
      "button",
      {
        type: "button",
        class: "chip",
        "data-group": key,
        "aria-pressed": "false",
        on: { click: () => this.#press(key) },
      },
      sign(key),
      el("span", {}, title),
      number,
    );
    this.#chips.set(key, { chip, number });
    return chip;
  }

  #press(key) {
    this.#only = this.#only === key ? null : key;
    for (const [own, { chip }] of this.#chips) chip.setAttribute("aria-pressed", own === this.#only);
    this.#filter();
  }

  /** Show the filter that the address has. */
  restore({ text, only }) {
    at("filter").value = text;
    this.#only = only;
    for (const [own, { chip }] of this.#chips) chip.setAttribute("aria-pressed", own === only);
    this.#filter();
  }

  #clear(input) {
    input.value = "";
    this.#filter();
  }

  #filter() {
    this.#onFilter(at("filter").value, this.#only);
  }

  /** Show the number of servers in each group, and how many are visible. */
  counts(shown) {
    const counts = this.#fleet.counts();
    for (const [key, { chip, number }] of this.#chips) {
      setText(number, String(counts[key]));
      number.dataset.value = counts[key];
      setAttribute(chip, "data-none", counts[key] === 0 ? "" : null);
    }
    const all = this.#fleet.servers.length;
    this.#showBar(counts, all);
    this.#loaded = true;
    this.#showHeadline();
    setText(at("shown"), shown);
    show(at("nothing"), all === 0 || shown.startsWith("0 of"));
    setText(
      at("nothing"),
      all === 0
        ? "No servers are configured. Add one to the mcp.json; the hub applies the change by itself."
        : "No server matches. Clear the search to see them all.",
    );
  }

  /** The fleet as one bar: how much of it is well is seen before a word is read. */
  #showBar(counts, all) {
    const bar = at("bar");
    show(bar, all > 1);
    GROUPS.forEach(({ key }, index) => {
      const part = bar.children[index] ?? bar.appendChild(el("span", { class: key }));
      part.style.flexGrow = counts[key];
      show(part, counts[key] > 0);
    });
  }

  /** The headline is about the servers only while the hub answers. */
  #showHeadline() {
    if (document.body.dataset.view !== "board") return;
    if (this.#touch.state === "lost") {
      this.#replace("headline", [el("span", { class: "em need" }, "The hub does not answer")]);
      this.#replace("subline", []);
      document.title = "The hub does not answer · Holdfast";
      return;
    }
    if (!this.#loaded) return;
    const counts = this.#fleet.counts();
    this.#replace("headline", headline(counts, this.#fleet.servers.length));
    this.#replace("subline", subline(counts));
    document.title = counts.need ? `${counts.need} need${counts.need === 1 ? "s" : ""} you · Holdfast` : "Holdfast";
  }

  /** Replace the text only if it changed: a selection or a screen reader stays undisturbed. */
  #replace(id, parts) {
    const fresh = el("div", {}, ...parts);
    if (fresh.textContent !== at(id).textContent) at(id).replaceChildren(...fresh.childNodes);
  }

  hub() {
    const { hub } = this.#fleet;
    this.#uptime = field("started", hub.started, "");
    at("colophon").replaceChildren(...colophon(hub, this.#uptime));
    at("banners").replaceChildren(...banners(hub));
    this.#lostBanner = null;
    this.tick();
  }

  touch(touch) {
    this.#touch = touch;
    this.tick();
  }

  tick() {
    const { state } = this.#touch;
    at("touch").dataset.touch = state;
    document.body.toggleAttribute("data-lost", state === "lost" && this.#fleet.hub !== null);
    setText(at("touch-text"), this.#touchWords(Date.now() / 1000));
    this.#showLost(state === "lost");
    this.#showHeadline();
    const { hub, now } = this.#fleet;
    if (hub) setText(this.#uptime, duration(now - hub.started));
  }

  #touchWords(now) {
    const { state, heard } = this.#touch;
    if (state === "connecting") return "Connecting…";
    if (state === "lost") return "Disconnected";
    const age = now - heard;
    return age < 5 ? "Live" : `Live, heard ${duration(age)} ago`;
  }

  #showLost(lost) {
    if (!lost) {
      this.#lostBanner?.node.remove();
      this.#lostBanner = null;
      return;
    }
    if (!this.#lostBanner) {
      const words = el("span", {});
      const wait = el("span", { class: "wait" });
      const button = el("button", { type: "button", on: { click: () => this.#onRetry() } }, "Try now");
      const node = el(
        "p",
        { class: "banner", "data-kind": "lost" },
        el("span", { role: "alert" }, words),
        " ",
        wait,
        " ",
        button,
      );
      at("banners").prepend(node);
      this.#lostBanner = { node, words, wait };
    }
    const now = Date.now() / 1000;
    const { heard, retry } = this.#touch;
    const seen =
      heard === null
        ? "The hub does not answer."
        : `The hub does not answer. This page shows the state of ${clock(heard, now)}.`;
    setText(this.#lostBanner.words, seen);
    setText(
      this.#lostBanner.wait,
      retry === null || retry === undefined ? "Trying…" : `Next try in ${countdown(retry - now)}.`,
    );
  }
}

function at(id) {
  return document.getElementById(id);
}

/** The headline: the groups that need attention. */
function headline(counts, all) {
  if (!all) return ["No servers are configured"];
  const number = numbers(counts);
  const trouble = GROUPS.filter(({ key }) => (key === "need" || key === "coming") && counts[key]);
  if (!trouble.length)
    return counts.up
      ? ["All is well: ", number("up"), counts.up === 1 ? " server is up" : " servers are up"]
      : ["Nothing is running"];
  const none = counts.up ? [] : ["No server is available: "];
  const parts = trouble.flatMap(({ key, verb }, index) => [
    index ? ", " : "",
    el(
      "span",
      { class: `em ${key}` },
      number(key),
      index ? "" : counts[key] === 1 ? " server" : " servers",
      ` ${verb[counts[key] === 1 ? 0 : 1]}`,
    ),
  ]);
  return [...none, ...parts];
}

/** The other groups. */
function subline(counts) {
  const calm = GROUPS.filter(
    ({ key }) => (key === "rest" || (key === "up" && (counts.need || counts.coming))) && counts[key],
  );
  return calm.flatMap(({ key, verb }, index) => [
    index ? ", " : "",
    numbers(counts)(key),
    ` ${verb[counts[key] === 1 ? 0 : 1]}`,
  ]);
}

function numbers(counts) {
  return (key) => field(`count.${key}`, counts[key], counts[key].toLocaleString("en"));
}

function banners(hub) {
  const parts = [];
  if (hub.draining)
    parts.push(
      el(
        "p",
        { class: "banner", "data-kind": "lost", role: "alert" },
        "The hub is closing: it finishes the calls in flight and refuses new ones.",
      ),
    );
  if (hub.config_problem) {
    parts.push(
      el(
        "div",
        { class: "banner", "data-kind": "need", role: "alert" },
        el("strong", {}, "The last edit of the configuration was not applied. "),
        field("config_problem", hub.config_problem, hub.config_problem, "span", { class: "pre" }),
      ),
    );
  }
  if (hub.fleet && hub.fleet.not_shared_since !== null)
    parts.push(
      el(
        "p",
        { class: "banner", "data-kind": "need", role: "alert" },
        el("strong", {}, "This replica goes on alone. "),
        "The store of the fleet has not answered since ",
        field("fleet.not_shared_since", hub.fleet.not_shared_since, clock(hub.fleet.not_shared_since, hub.now)),
        hub.fleet.problem ? [" (", sentence("fleet.problem", hub.fleet.problem), ")"] : "",
        ". What you switch or approve here holds on this replica only until it is back.",
        hub.fleet.not_shared.length ? ` Not shared yet: ${hub.fleet.not_shared.join(", ")}.` : "",
      ),
    );
  else if (hub.fleet && hub.fleet.problem)
    parts.push(
      el(
        "p",
        { class: "banner", "data-kind": "need", role: "alert" },
        el("strong", {}, "The replicas do not share safely: "),
        sentence("fleet.problem", hub.fleet.problem),
        ". What you switch or approve here holds on this replica only.",
      ),
    );
  if (hub.notice)
    parts.push(
      el("p", { class: "banner", "data-kind": "hint", role: "status" }, "Note: ", sentence("notice", hub.notice)),
    );
  if (hub.demo) {
    parts.push(
      el(
        "p",
        { class: "banner", "data-kind": "hint" },
        "This is the demo fleet: its servers fail on purpose, each in its own way. In a second terminal, ",
        el("code", {}, `${hub.program} demo break notes`),
        " breaks one and ",
        el("code", {}, `${hub.program} demo heal vault`),
        " heals one.",
      ),
    );
  }
  return parts;
}

/** The replicas of the hub: a line for each, this one first. */
function replicas({ fleet, now }) {
  const first = [...fleet.replicas].sort((one, other) => other.here - one.here || byId(one.id, other.id));
  const count = fleet.replicas.length;
  const kind = count && fleet.replicas.every((one) => one.worker !== null) ? "worker" : "replica";
  return [
    `${count} ${kind}${count === 1 ? "" : "s"} on `,
    field("fleet.store", fleet.store, fleet.store, "code"),
    el(
      "ul",
      { class: "replicas" },
      ...first.slice(0, MOST_REPLICAS).map((one) =>
        el(
          "li",
          {},
          el("code", {}, one.id),
          ` on ${one.host}, process ${one.pid}, version ${one.version}, since ${clock(one.started, now)}`,
          one.here ? " (this page)" : "",
        ),
      ),
      count > MOST_REPLICAS ? el("li", {}, `and ${count - MOST_REPLICAS} more`) : null,
    ),
  ];
}

const MOST_REPLICAS = 20;

/** The programs that joined this hub, each with the folder that it works in. */
function joined(clients) {
  const count = clients.length;
  return [
    field("clients", count, `${count} ${count === 1 ? "program" : "programs"}`),
    el(
      "ul",
      { class: "replicas" },
      ...clients.slice(0, MOST_CLIENTS).map(({ program, folder, pid }) =>
        el(
          "li",
          { "data-client": pid },
          el("span", {}, program || `process ${pid}`),
          folder ? [" in ", el("code", {}, folder)] : "",
        ),
      ),
      count > MOST_CLIENTS ? el("li", {}, `and ${count - MOST_CLIENTS} more`) : null,
    ),
  ];
}

const MOST_CLIENTS = 20;

function colophon(hub, uptime) {
  const entry = (title, ...value) => el("div", {}, el("dt", {}, title), el("dd", {}, ...value));
  return [
    el(
      "dl",
      {},
      entry(
        "Endpoint for clients",
        el("span", { class: "command small" }, ...copyable(field("endpoint", hub.endpoint), "the endpoint")),
      ),
      hub.config ? entry("Serves", field("config", hub.config, hub.config, "code")) : null,
      entry(
        "Hub",
        field("name", hub.name),
        " ",
        field("version", hub.version),
        ", process ",
        field("pid", hub.pid),
        ", up for ",
        uptime,
      ),
      hub.identity ? entry("Acts as", field("identity", hub.identity)) : null,
      hub.clients.length ? entry("Joined clients", ...joined(hub.clients)) : null,
      hub.fleet ? entry("Fleet", ...replicas(hub)) : null,
    ),
    el(
      "p",
      { class: "fine keys" },
      "Keys: ",
      el("kbd", {}, "Tab"),
      " to a server, ",
      el("kbd", {}, "↑"),
      " ",
      el("kbd", {}, "↓"),
      " from one to the next, ",
      el("kbd", {}, "Enter"),
      " opens, ",
      el("kbd", {}, "Esc"),
      " closes.",
    ),
  ];
}
