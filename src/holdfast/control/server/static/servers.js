// The list of all servers, in groups. Rows exist for what is shown: a fleet of 500 costs no more than one of 50.

import { el, field, setText, show } from "./dom.js";
import { GROUPS, byId } from "./fleet.js";
import { Cause, folded } from "./causes.js";
import { windowFor } from "./charts.js";
import { Row, matches } from "./row.js";
import { count, duration } from "./format.js";

/** Servers without a problem that are shown before the user asks for all. */
const FEW = 20;
/** A button that shows two more rows would be a nuisance. */
const SLACK = 5;
const FOLDED = new Set(["need", "coming"]);

export class ServerList {
  #fleet;
  #env;
  #onToggle;
  #rows = new Map();
  #causes = new Map();
  #groups = new Map();
  #whole = new Set();
  #sight;
  #only = null;
  #text = "";
  #shown = 0;
  opened = null;

  /** `place` is the parent element; `act(id, verb)` and `tryAll(cause)` send actions, `onToggle` fills the details. */
  constructor(place, { fleet, act, tryAll, onToggle }) {
    this.#fleet = fleet;
    this.#onToggle = onToggle;
    this.#env = {
      act,
      tryAll,
      toggle: (what) => (what instanceof Cause ? this.#unfold(what) : this.toggle(what)),
      now: () => fleet.now,
      window: () => this.window,
    };
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
    const more = el("button", { type: "button", class: "more", hidden: true, on: { click: () => this.#showAll(key) } });
    const node = el(
      "section",
      { class: "group", "data-group": key, "aria-labelledby": `group-${key}`, hidden: true },
      head,
      list,
      more,
    );
    place.append(node);
    return { node, list, number, scale, more };
  }

  row(id) {
    return this.#rows.get(id);
  }

  put(server) {
    this.#rows.get(server.id)?.update(server);
  }

  get window() {
    return windowFor(this.#fleet.hub ? this.#fleet.now - this.#fleet.hub.started : 0);
  }

  // Arranging

  /** Put every entry into its place. The focus stays where it is, and the row that has it is never left out. */
  arrange() {
    const focused = document.activeElement;
    const before = focused?.closest(".server, .cause");
    const group = before?.dataset.group;
    if (this.opened !== null && !this.#fleet.get(this.opened)) this.toggle(this.opened);
    const kept = new Set([this.opened, before?.dataset.id].filter(Boolean));
    const wanted = new Set();
    const causes = new Set();
    this.#shown = 0;
    const members = this.#members();
    for (const [key, place] of this.#groups) {
      const own = members.get(key);
      this.#shown += own.length;
      const entries = FOLDED.has(key) ? folded(own) : this.#few(key, own, kept, place.more).map((server) => ({ server }));
      const nodes = entries.map((entry) => {
        if (entry.server) return this.#row(entry.server, wanted).node;
        return this.#cause(key, entry, kept, wanted, causes).node;
      });
      fill(place.list, nodes);
      show(place.node, own.length > 0);
    }
    for (const [id, row] of this.#rows) if (!wanted.has(id)) this.#drop(id, row);
    for (const [key, cause] of this.#causes) if (!causes.has(key)) this.#forget(key, cause);
    this.#refocus(focused, before, group);
    this.#count();
    return this.#shown;
  }

  #members() {
    const members = new Map(GROUPS.map(({ key }) => [key, []]));
    for (const server of this.#fleet.servers) {
      const wanted = this.#only === null || this.#only === server.group;
      if (wanted && (this.#text === "" || matches(server, this.#text))) members.get(server.group).push(server);
    }
    for (const servers of members.values()) servers.sort((one, other) => byId(one.id, other.id));
    return members;
  }

  #few(key, servers, kept, more) {
    const all = this.#whole.has(key) || this.#text !== "" || this.#only === key || servers.length <= FEW + SLACK;
    show(more, !all);
    if (all) return servers;
    setText(more, `Show all ${servers.length.toLocaleString("en")}`);
    return servers.filter((server, index) => index < FEW || kept.has(server.id));
  }

  #showAll(key) {
    this.#whole.add(key);
    const next = this.#groups.get(key).list.lastElementChild;
    this.arrange();
    // The button is gone: the focus goes to the first row that it added.
    next?.nextElementSibling?.querySelector(".opener")?.focus();
  }

  #row(server, wanted) {
    wanted.add(server.id);
    const known = this.#rows.get(server.id);
    if (known) return known;
    const row = new Row(server, this.#env);
    this.#rows.set(server.id, row);
    this.#sight.observe(row.node);
    return row;
  }

  #cause(group, entry, kept, wanted, causes) {
    causes.add(entry.key);
    let cause = this.#causes.get(entry.key);
    if (!cause) this.#causes.set(entry.key, (cause = new Cause(group, this.#env)));
    const holds = entry.servers.some((server) => kept.has(server.id));
    if (holds || this.#text !== "") cause.open = true;
    fill(cause.list, cause.open ? entry.servers.map((server) => this.#row(server, wanted).node) : []);
    cause.update(entry);
    return cause;
  }

  #unfold(cause) {
    cause.open = !cause.open;
    if (!cause.open && cause.servers.some((server) => server.id === this.opened)) this.toggle(this.opened);
    this.arrange();
  }

  #drop(id, row) {
    this.#sight.unobserve(row.node);
    row.node.remove();
    this.#rows.delete(id);
  }

  #forget(key, cause) {
    cause.node.remove();
    this.#causes.delete(key);
  }

  #refocus(focused, before, group) {
    if (!before) return;
    const row = this.#rows.get(before.dataset.id);
    const usable = focused.isConnected && focused.checkVisibility();
    if (document.activeElement !== focused || !usable) {
      const next = usable ? focused : (row?.opener ?? (before.isConnected ? before.querySelector(".opener") : null));
      next?.focus({ preventScroll: true });
    }
    if (row && row.server.group !== group) row.node.scrollIntoView({ block: "nearest" });
  }

  #count() {
    const counts = this.#fleet.counts();
    const { step, calls } = this.#fleet.servers.find((server) => server.activity)?.activity ?? {};
    for (const [key, { number, scale }] of this.#groups) {
      setText(number, counts[key].toLocaleString("en"));
      number.dataset.value = counts[key];
      setText(scale.firstChild, `${duration(this.window)} ago`);
      setText(scale.lastChild, calls ? `calls, last ${duration(step * calls.length)}` : "calls");
    }
  }

  /** Open the details of a server, and close the others. */
  toggle(id) {
    const before = this.opened;
    if (before !== null) this.#set(before, false);
    this.opened = before === id || !this.#fleet.get(id) ? null : id;
    if (this.opened === null) return this.#onToggle(null, false);
    // It may be in a group whose rows are not shown.
    if (!this.#rows.has(id)) this.arrange();
    return this.#set(id, true);
  }

  #set(id, open) {
    const row = this.#rows.get(id);
    if (!row) return;
    row.opener.setAttribute("aria-expanded", open);
    row.node.toggleAttribute("data-open", open);
    show(row.detail, open);
    this.#onToggle(row, open);
  }

  filter(text, only) {
    this.#text = text.trim().toLowerCase();
    this.#only = only;
  }

  describe() {
    const all = this.#fleet.servers.length;
    return this.#shown === all ? "" : `${this.#shown} of ${count(all, "server")} shown`;
  }

  // Time, visibility and keys

  /** Returns the servers whose countdown ended without an event. */
  tick() {
    const now = this.#fleet.now;
    const overdue = [];
    for (const cause of this.#causes.values()) cause.tick(now);
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
    const all = [...document.querySelectorAll(".opener")].filter((one) => one.checkVisibility());
    const at = all.indexOf(event.target);
    const to = { ArrowDown: at + 1, ArrowUp: at - 1, Home: 0, End: all.length - 1 }[event.key];
    if (to === undefined || !all[to]) return;
    event.preventDefault();
    all[to].focus();
  }
}

/**
 * Give a list these children in this order. Nodes that stay in place are not touched; others may remain at the end:
 * they move to another list, or their row is dropped.
 */
function fill(list, nodes) {
  const wanted = new Set(nodes);
  let at = list.firstElementChild;
  for (const node of nodes) {
    while (at && !wanted.has(at)) at = at.nextElementSibling;
    if (at === node) at = at.nextElementSibling;
    else insert(list, node, at);
  }
}

/** Move a node; with `moveBefore` its focus and scroll position stay. */
function insert(list, node, next) {
  if (node.isConnected && list.isConnected && list.moveBefore) list.moveBefore(node, next);
  else list.insertBefore(node, next);
}
