// The list of all servers, in groups. Only changed parts are updated, and the focus stays where it is.

import { el, field, setText, show } from "./dom.js";
import { GROUPS, byId } from "./fleet.js";
import { windowFor } from "./charts.js";
import { Row } from "./row.js";
import { count, duration } from "./format.js";

export class ServerList {
  #fleet;
  #act;
  #onToggle;
  #rows = new Map();
  #groups = new Map();
  #sight;
  #only = null;
  #text = "";
  opened = null;

  /** `place` is the parent element; `act(id, verb)` sends an action, `onToggle(row, open)` fills the details. */
  constructor(place, { fleet, act, onToggle }) {
    this.#fleet = fleet;
    this.#act = act;
    this.#onToggle = onToggle;
    this.#sight = new IntersectionObserver((seen) => this.#see(seen), { rootMargin: "200px" });
    for (const group of GROUPS) this.#groups.set(group.key, this.#group(place, group));
    place.addEventListener("keydown", (event) => this.#keys(event));
  }

  #group(place, { key, title, about }) {
    const list = el("ul", { class: "servers", role: "list" });
    const number = field(`count.${key}`, 0, "0", "span", { class: "number" });
    const scale = el(
      "p",
      { class: "scale", "aria-hidden": "true" },
      el("span", {}),
      el("span", {}, "now"),
      el("span", {}, "calls"),
    );
    const heading = el("h2", { id: `group-${key}` }, title, " ", number);
    const head = el("div", { class: "group-head" }, heading, about ? el("p", { class: "about" }, about) : null, scale);
    const node = el(
      "section",
      { class: "group", "data-group": key, "aria-labelledby": `group-${key}`, hidden: true },
      head,
      list,
    );
    place.append(node);
    return { node, list, number, scale };
  }

  row(id) {
    return this.#rows.get(id);
  }

  /** Show the whole fleet: remove missing servers, update the others in place. */
  load(servers) {
    const ids = new Set(servers.map((server) => server.id));
    for (const id of [...this.#rows.keys()]) if (!ids.has(id)) this.remove(id);
    for (const server of [...servers].sort((one, other) => byId(one.id, other.id))) this.put(server, { last: true });
  }

  put(server, { last = false } = {}) {
    const row = this.#rows.get(server.id);
    if (!row) {
      const made = new Row(server, this.#env());
      this.#rows.set(server.id, made);
      this.#sight.observe(made.node);
      this.#place(made, last);
      this.#filter(made);
      return;
    }
    const group = row.server.group;
    const focused = row.node.contains(document.activeElement) ? document.activeElement : null;
    row.update(server);
    if (group !== server.group) this.#move(row, focused);
    else if (focused?.hidden) row.opener.focus({ preventScroll: true });
    this.#filter(row);
  }

  remove(id) {
    const row = this.#rows.get(id);
    if (!row) return;
    if (this.opened === id) this.toggle(id);
    this.#sight.unobserve(row.node);
    row.node.remove();
    this.#rows.delete(id);
  }

  #env() {
    return {
      act: this.#act,
      toggle: (id) => this.toggle(id),
      now: () => this.#fleet.now,
      window: () => this.window,
    };
  }

  get window() {
    return windowFor(this.#fleet.hub ? this.#fleet.now - this.#fleet.hub.started : 0);
  }

  #place(row, last) {
    const { list } = this.#groups.get(row.server.group);
    const tail = list.lastElementChild;
    const fits = last && (!tail || byId(tail.dataset.id, row.server.id) < 0);
    const next = fits
      ? null
      : [...list.children].find((node) => node !== row.node && byId(node.dataset.id, row.server.id) > 0);
    insert(list, row.node, next ?? null);
  }

  /** Move a row into its new group; keep its focus, and keep it in view if it has the focus. */
  #move(row, focused) {
    this.#place(row, false);
    if (!focused) return;
    const usable = focused.isConnected && !focused.hidden;
    if (document.activeElement !== focused || !usable) (usable ? focused : row.opener).focus({ preventScroll: true });
    row.node.scrollIntoView({ block: "nearest" });
  }

  /** Open the details of a server, and close the others. */
  toggle(id) {
    const before = this.opened;
    if (before !== null) this.#set(before, false);
    this.opened = before === id || !this.#rows.has(id) ? null : id;
    if (this.opened !== null) this.#set(id, true);
  }

  #set(id, open) {
    const row = this.#rows.get(id);
    row.opener.setAttribute("aria-expanded", open);
    row.node.toggleAttribute("data-open", open);
    show(row.detail, open);
    this.#onToggle(row, open);
  }

  // Filter

  filter(text, only) {
    this.#text = text.trim().toLowerCase();
    this.#only = only;
    for (const row of this.#rows.values()) this.#filter(row);
    this.summarize();
  }

  #filter(row) {
    const wanted = this.#only === null || this.#only === row.server.group;
    show(row.node, wanted && (this.#text === "" || row.matches(this.#text)));
  }

  /** Hide empty groups. Returns how many servers are shown. */
  summarize() {
    const shown = Object.fromEntries(GROUPS.map(({ key }) => [key, 0]));
    for (const row of this.#rows.values()) if (!row.node.hidden) shown[row.server.group] += 1;
    const counts = this.#fleet.counts();
    for (const [key, { node, number, scale }] of this.#groups) {
      show(node, shown[key] > 0);
      setText(number, String(counts[key]));
      number.dataset.value = counts[key];
      setText(scale.firstChild, `${duration(this.window)} ago`);
    }
    return Object.values(shown).reduce((sum, number) => sum + number, 0);
  }

  describe(shown) {
    const all = this.#rows.size;
    return shown === all ? "" : `${shown} of ${count(all, "server")} shown`;
  }

  // Time, visibility and keys

  /** Returns the servers whose countdown ended without an event. */
  tick() {
    const now = this.#fleet.now;
    const overdue = [];
    for (const row of this.#rows.values()) {
      if (!row.visible) continue;
      row.tick(now);
      row.draw();
      if (row.isOverdue(now)) overdue.push(row.server.id);
    }
    return overdue;
  }

  #see(seen) {
    const now = this.#fleet.now;
    for (const { target, isIntersecting } of seen) {
      const row = this.#rows.get(target.dataset.id);
      if (!row) continue;
      row.visible = isIntersecting;
      if (!isIntersecting) continue;
      row.tick(now);
      row.draw();
    }
  }

  /** Arrow keys move between servers; Escape closes the details. */
  #keys(event) {
    if (event.key === "Escape" && this.opened !== null) {
      const row = this.#rows.get(this.opened);
      this.toggle(this.opened);
      row.opener.focus();
      return;
    }
    if (!event.target.classList.contains("opener")) return;
    const all = [...document.querySelectorAll(".server:not([hidden]) .opener")];
    const at = all.indexOf(event.target);
    const to = { ArrowDown: at + 1, ArrowUp: at - 1, Home: 0, End: all.length - 1 }[event.key];
    if (to === undefined || !all[to]) return;
    event.preventDefault();
    all[to].focus();
  }
}

/** Move a node; with `moveBefore` its focus and scroll position stay. */
function insert(list, node, next) {
  if (node.isConnected && list.moveBefore) list.moveBefore(node, next);
  else list.insertBefore(node, next);
}
