// One server in the list: built once, then only changed parts are updated.

import { copyable, el, field, setAttribute, setField, setText, setWords, show, words } from "./dom.js";
import { GROUPS, FLAPPING, kindOf } from "./fleet.js";
import {
  activityNumbers,
  activityParts,
  activityPicture,
  activityWords,
  sign,
  stripBlocks,
  stripPicture,
  stripWords,
} from "./charts.js";
import { count, countdown, duration, stateWord } from "./format.js";

const TITLES = Object.fromEntries(GROUPS.map((group) => [group.key, group.title.toLowerCase()]));
const SPARK = 20;
let made = 0;

export class Row {
  #env;
  #parts;
  #command = "";
  #drawn = { timeline: null, state: null, activity: null, from: 0 };
  server;
  #fading = 0;
  #tryingSince = null;
  visible = false;

  /** `env` has `act(id, verb)` and `toggle(id)`. */
  constructor(server, env) {
    this.#env = env;
    this.server = server;
    this.#parts = this.#build(server.id);
    this.update(server);
  }

  get node() {
    return this.#parts.node;
  }

  get opener() {
    return this.#parts.opener;
  }

  get detail() {
    return this.#parts.detail;
  }

  #build(id) {
    // The name of a server may contain characters that an element id may not.
    const detail = `detail-${(made += 1)}`;
    const parts = {
      sign: el("span", { class: "sign-place" }),
      group: el("span", { class: "hidden" }),
      state: field("state", "", "", "span", { class: "state" }),
      since: field("since", "", "", "span", { class: "since" }),
      target: field("target", "", "", "p", { class: "target" }),
      tools: field("tools", 0, "", "p", { class: "tools-count" }),
      summary: field("summary", "", "", "p", { class: "summary" }),
      action: field("action", "", "", "p", { class: "action" }),
      flapping: el(
        "p",
        { class: "action" },
        "It does not stay connected: lost ",
        field("timeline.losses", 0),
        ` times in the last ${duration(FLAPPING.seconds)}. Its log may show the reason.`,
      ),
      command: el("div", { class: "command" }),
      strip: stripPicture({ class: "strip" }),
      spark: activityPicture(SPARK, { class: "spark" }),
      numbers: el("p", { class: "numbers" }),
      retry: el(
        "p",
        { class: "retry" },
        el("span", { class: "retry-label" }),
        " ",
        field("retry_in", "", "", "span", { class: "retry-time" }),
      ),
      breaker: el(
        "p",
        { class: "retry" },
        "calls refused for ",
        field("breaker.retry_in", "", "", "span", { class: "retry-time" }),
      ),
      act: el("button", { type: "button", class: "act", "data-role": "operate", on: { click: () => this.#press() } }),
      note: el("p", { class: "note", hidden: true }),
      detail: el("div", { class: "detail", id: detail, hidden: true }),
    };
    parts.opener = el(
      "button",
      {
        type: "button",
        class: "opener",
        "aria-expanded": "false",
        "aria-controls": detail,
        on: { click: () => this.#env.toggle(this.server.id) },
      },
      field("id", id, id, "span", { class: "name" }),
      parts.group,
    );
    parts.node = el(
      "li",
      { class: "server", "data-id": id },
      el(
        "div",
        { class: "head" },
        parts.sign,
        el("div", { class: "who" }, el("h3", {}, parts.opener), parts.target),
        el(
          "div",
          { class: "words" },
          el("p", { class: "stand" }, parts.state, " ", parts.since),
          parts.tools,
          parts.summary,
          parts.action,
          parts.flapping,
          parts.command,
          parts.note,
        ),
        el("div", { class: "pictures" }, parts.strip, parts.spark, parts.numbers),
        el("div", { class: "aside" }, parts.retry, parts.breaker, parts.act),
      ),
      parts.detail,
    );
    return parts;
  }

  update(server) {
    const { node, sign: place, group, state, target, tools, summary, action, flapping } = this.#parts;
    const moved = this.server !== server && this.server.state !== server.state;
    this.server = server;
    if (node.dataset.group !== server.group) {
      node.dataset.group = server.group;
      place.replaceChildren(sign(server.group));
      setText(group, `, ${TITLES[server.group]}`);
    }
    setField(state, server.state, stateWord(server.state));
    const parkedForNow = server.state === "parked" && server.status === "transient";
    setAttribute(state, "data-kind", parkedForNow ? "coming" : kindOf(server.state));
    setField(target, server.target);
    setAttribute(target, "title", server.target);
    setField(tools, server.tools, count(server.tools, "tool"));
    setWords(summary, server.summary);
    setWords(action, server.action);
    show(action, server.action !== "");
    show(target, server.target !== "");
    show(flapping, server.losses >= FLAPPING.losses);
    setField(flapping.querySelector("[data-field]"), server.losses);
    this.#showCommand(server.command);
    this.#showAct();
    if (server.group === "up" && this.#parts.note.dataset.kind === "failed") this.say("", "");
    if (moved && this.visible && !CALM.matches) node.animate(FLASH, { duration: 1200, easing: "ease-out" });
    this.tick(this.#env.now());
    this.#tellPictures();
    this.draw();
  }

  #showCommand(command) {
    if (this.#command === command) return;
    this.#command = command;
    this.#parts.command.replaceChildren(
      ...(command ? copyable(field("command", command), `the command for ${this.server.id}`) : []),
    );
  }

  #verb() {
    if (this.server.status === "disabled") return "enable";
    if (this.server.login) return "login";
    return this.server.group === "need" && this.server.status === "available" ? "look" : "reconnect";
  }

  #press() {
    const verb = this.#verb();
    if (verb !== "look" && verb !== "login") this.#env.act(this.server.id, verb);
    else if (this.detail.hidden) this.#env.toggle(this.server.id);
  }

  #showAct() {
    const { act } = this.#parts;
    const label = {
      enable: "Enable",
      login: "Log in",
      look: this.server.held.length ? "Review" : "Details",
      reconnect: this.server.status === "idle" ? "Start" : "Try now",
    }[this.#verb()];
    show(act, this.server.group !== "up" && this.server.state !== "disabling");
    setText(act, label);
    // Where the button does what the command does, the command waits in the open row.
    this.#parts.node.toggleAttribute("data-acts", this.server.login || this.server.held.length > 0);
    setAttribute(act, "aria-label", `${label}: ${this.server.id}`);
  }

  /** Show the progress and the result of an action. */
  say(kind, text) {
    const { note, node } = this.#parts;
    setAttribute(node, "aria-busy", kind === "busy" ? "true" : null);
    setAttribute(note, "role", kind === "failed" ? "alert" : null);
    note.dataset.kind = kind;
    note.replaceChildren(...words(text));
    show(note, text !== "");
    clearTimeout(this.#fading);
    if (kind === "done") this.#fading = setTimeout(() => this.say("", ""), NOTE_TIME);
  }

  /** Update the running times: once a second, for visible rows. */
  tick(now) {
    const { retry, breaker, since } = this.#parts;
    const { server } = this;
    setField(since, server.since, `for ${duration(now - server.since)}`);
    // While it is connected, the breaker's own countdown says when a call may try.
    const waits = server.due !== null && server.due > now && server.state !== "connected" && server.group !== "up";
    const tries = !waits && (server.state === "connecting" || server.state === "reconnecting");
    this.#tryingSince = tries ? (this.#tryingSince ?? now) : null;
    show(retry, waits || tries);
    if (waits) {
      setText(retry.firstChild, server.group === "need" ? "tries again in" : "next try in");
      setField(retry.lastChild, server.retry_in, countdown(server.due - now));
    } else if (tries) {
      setText(retry.firstChild, "trying now, for");
      setField(retry.lastChild, server.retry_in, duration(now - this.#tryingSince));
    }
    const refuses = server.breaker.state === "open" && server.breakerDue !== null && server.breakerDue > now;
    show(breaker, refuses);
    if (refuses) setField(breaker.lastChild, server.breaker.retry_in, countdown(server.breakerDue - now));
  }

  isOverdue(now) {
    return [this.server.due, this.server.breakerDue].some((due) => due !== null && due < now - 1);
  }

  /** Update the text alternatives of the charts. */
  #tellPictures() {
    const now = this.#env.now();
    setAttribute(this.#parts.strip, "aria-label", stripWords(this.server, now - this.#env.window(), now));
    setAttribute(this.#parts.spark, "aria-label", activityWords(this.server.activity));
  }

  /** Draw the charts, if they are visible and would change. */
  draw() {
    if (!this.visible) return;
    const now = this.#env.now();
    const span = this.#env.window();
    const { server } = this;
    const drawn = this.#drawn;
    const hair = 1000 / STRIP_PIXELS;
    const fresh = server.timeline !== drawn.timeline || server.state !== drawn.state;
    if (fresh || now - span - drawn.from > span / STRIP_PIXELS) {
      this.#parts.strip.replaceChildren(...stripBlocks(server, now - span, now, hair * 1.5));
      this.#tellPictures();
      this.#drawn = { ...this.#drawn, timeline: server.timeline, state: server.state, from: now - span };
    }
    if (server.activity !== drawn.activity) {
      this.#parts.spark.replaceChildren(...(server.activity ? activityParts(server.activity, { height: SPARK }) : []));
      this.#parts.numbers.replaceChildren(...activityNumbers(server.activity));
      this.#drawn.activity = server.activity;
    }
  }

}

/** Whether every word occurs in what the page knows of a server. */
export function matches(server, text) {
  const { id, target, state, status, summary, cause, transport } = server;
  const known = [id, target, stateWord(state), status, summary, cause, transport].join("\n").toLowerCase();
  return text.split(/\s+/).every((word) => known.includes(word));
}

const NOTE_TIME = 8000;
const STRIP_PIXELS = 140;
// A mark at the edge, not a coloured background: the text stays readable.
const FLASH = [{ boxShadow: "inset 5px 0 var(--accent)" }, { boxShadow: "inset 5px 0 transparent" }];
const CALM = matchMedia("(prefers-reduced-motion: reduce)");
