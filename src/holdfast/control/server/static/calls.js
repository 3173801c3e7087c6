// Calls that wait for a person: what is called by whom, with which arguments, and two buttons.

import { el, setText, show } from "./dom.js";
import { clock } from "./format.js";

const AGAIN = 3000;

export class Calls {
  #api;
  #section = document.getElementById("calls");
  #note = document.getElementById("calls-note");
  #rows = document.getElementById("calls-rows");
  #shown = "[]";
  #timer = 0;

  constructor(api) {
    this.#api = api;
  }

  /** Load and show the calls. */
  async load() {
    try {
      const { calls } = await this.#api.get("/api/calls");
      this.#render(calls);
      this.#say("");
    } catch (error) {
      this.#say(`The calls that wait were not loaded: ${error.message}.`);
    }
  }

  /** Load them again and again: a caller has no stream of events. */
  follow() {
    this.load();
    this.#timer = setInterval(() => this.load(), AGAIN);
  }

  hide() {
    clearInterval(this.#timer);
    this.#render([]);
    this.#say("");
  }

  #render(calls) {
    const text = JSON.stringify(calls);
    // An equal list does not replace the one that the user reads.
    if (text === this.#shown) return;
    this.#shown = text;
    this.#rows.replaceChildren(...calls.map((call) => this.#row(call)));
    show(this.#section, calls.length > 0);
  }

  #row(call) {
    const { id, principal, program, server, tool, expires } = call;
    const name = `${server}/${tool}`;
    const by = `${principal}${program ? ` (${program})` : ""}, until ${clock(expires, Date.now() / 1000)}`;
    const button = (words, approve) =>
      el(
        "button",
        { type: "button", "aria-label": `${words} ${name} of ${principal}`, on: { click: () => this.#decide(id, approve) } },
        words,
      );
    return el(
      "article",
      { class: "change", "data-call": id },
      el("header", {}, el("code", {}, name), el("span", { class: "tag" }, by), button("Approve", true), button("Refuse", false)),
      call.arguments
        ? el("pre", { class: "diff", tabindex: "0", role: "region", "aria-label": `Arguments of ${name}` }, call.arguments)
        : null,
    );
  }

  async #decide(id, approve) {
    try {
      await this.#api.post(`/api/calls/${encodeURIComponent(id)}`, { approve });
    } catch (error) {
      this.#say(`Not done: ${error.message}.`);
      return;
    }
    await this.load();
    // The button is gone with its call: move the focus to the next one.
    const next = this.#rows.querySelector("button");
    if (next && document.activeElement === document.body) next.focus();
  }

  #say(text) {
    setText(this.#note, text);
    show(this.#note, text !== "");
    if (text) show(this.#section, true);
  }
}
