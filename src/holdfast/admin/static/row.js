// One server in the list: made once, and from then on changed only where something is different.

import { copyable, el, field, setAttribute, setField, setText, setWords, show, words } from "./dom.js";
import { GROUPS, UNSTEADY, kindOf } from "./fleet.js";
import {
  activityParts,
  activityPicture,
  activityWords,
  sign,
  stripBlocks,
  stripPicture,
  stripWords,
} from "./pictures.js";
import { countdown, duration, stateWord } from "./words.js";

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
    // A server's name may hold what an element's id may not.
    const detail = `detail-${(made += 1)}`;
    const parts = {
      sign: el("span", { class: "sign-place" }),
      group: el("span", { class: "hidden" }),
      state: field("state", "", "", "span", { class: "state" }),
      since: field("since", "", "", "span", { class: "since" }),
      target: field("target", "", "", "p", { class: "target" }),
      summary: field("summary", "", "", "p", { class: "summary" }),
      action: field("action", "", "", "p", { class: "action" }),
      unsteady: el(
        "p",
        { class: "action" },
        "It does not stay up: lost ",
        field("timeline.falls", 0),
        ` times in the last ${duration(UNSTEADY.seconds)}. Its log may tell why.`,
      ),
      command: el("div", { class: "command" }),
      strip: stripPicture({ class: "strip" }),
      spark: activityPicture(SPARK, { class: "spark" }),
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
      act: el("button", { type: "button", class: "act", on: { click: () => this.#press() } }),
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
          parts.summary,
          parts.action,
          parts.unsteady,
          parts.command,
          parts.note,
        ),
        el("div", { class: "pictures" }, parts.strip, parts.spark),
        el("div", { class: "aside" }, parts.retry, parts.breaker, parts.act),
      ),
      parts.detail,
    );
    return parts;
  }

  update(server) {
    const { node, sign: place, group, state, target, summary, action, unsteady } = this.#parts;
    const moved = this.server !== server && this.server.state !== server.state;
    this.server = server;
    if (node.dataset.group !== server.group) {
      node.dataset.group = server.group;
      place.replaceChildren(sign(server.group));
      setText(group, `, ${TITLES[server.group]}`);
    }
    setField(state, server.state, stateWord(server.state));
    setAttribute(state, "data-kind", kindOf(server.state));
    setField(target, server.target);
    setWords(summary, server.summary);
    setWords(action, server.action);
    show(action, server.action !== "");
    show(target, server.target !== "");
    show(unsteady, server.falls >= UNSTEADY.falls);
    setField(unsteady.querySelector("[data-field]"), server.falls);
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
    return this.server.group === "need" && this.server.status === "available" ? "look" : "reconnect";
  }

  #press() {
    const verb = this.#verb();
    if (verb !== "look") this.#env.act(this.server.id, verb);
    else if (this.detail.hidden) this.#env.toggle(this.server.id);
  }

  #showAct() {
    const { act } = this.#parts;
    const label = {
      enable: "Switch on",
      look: this.server.held.length ? "Review" : "Look",
      reconnect: this.server.status === "idle" ? "Wake" : "Try now",
    }[this.#verb()];
    show(act, this.server.group !== "up" && this.server.state !== "disabling");
    setText(act, label);
    setAttribute(act, "aria-label", `${label}: ${this.server.id}`);
  }

  /** While the hub acts, and what came of it. */
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

  /** Times that run: once a second, for rows that are seen. */
  tick(now) {
    const { retry, breaker, since } = this.#parts;
    const { server } = this;
    setField(since, server.since, `for ${duration(now - server.since)}`);
    const waits = server.due !== null && server.group !== "up";
    const tries = !waits && (server.state === "connecting" || server.state === "reconnecting");
    show(retry, waits || tries);
    if (waits) {
      setText(retry.firstChild, server.group === "need" ? "looks again in" : "next try in");
      setField(retry.lastChild, server.retry_in, countdown(server.due - now));
    } else if (tries) {
      setText(retry.firstChild, "trying now");
      setField(retry.lastChild, server.retry_in, "");
    }
    const refuses = server.breaker.state === "open" && server.breakerDue !== null && server.breakerDue > now;
    show(breaker, refuses);
    if (refuses) setField(breaker.lastChild, server.breaker.retry_in, countdown(server.breakerDue - now));
  }

  isOverdue(now) {
    return [this.server.due, this.server.breakerDue].some((due) => due !== null && due < now - 1);
  }

  /** What the pictures show in words: for those who come by another way than by looking. */
  #tellPictures() {
    const now = this.#env.now();
    setAttribute(this.#parts.strip, "aria-label", stripWords(this.server, now - this.#env.window(), now));
    setAttribute(this.#parts.spark, "aria-label", activityWords(this.server.activity));
  }

  /** The pictures, if they are seen and would look different. */
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
      this.#drawn.activity = server.activity;
    }
  }

  matches(text) {
    const { id, target, state, summary, transport } = this.server;
    return [id, target, stateWord(state), summary, transport].some((part) => part.toLowerCase().includes(text));
  }
}

const NOTE_TIME = 8000;
const STRIP_PIXELS = 140;
// A mark at the edge, not a coloured ground: letters can be read at every moment of it.
const FLASH = [{ boxShadow: "inset 5px 0 var(--accent)" }, { boxShadow: "inset 5px 0 transparent" }];
const CALM = matchMedia("(prefers-reduced-motion: reduce)");
