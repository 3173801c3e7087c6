// Who did what: the latest records of the audit. An operator sees all of them, a caller her own.

import { el, setText, show } from "./dom.js";
import { clock, milliseconds } from "./format.js";

const SHOWN = 100;

export class Activity {
  #api;
  #section = document.getElementById("activity");
  #title = document.getElementById("activity-title");
  #rows = document.getElementById("activity-rows");
  #note = document.getElementById("activity-note");

  constructor(api) {
    this.#api = api;
    document.getElementById("activity-refresh").addEventListener("click", () => this.load());
  }

  /** Load and show the records; a hub without an audit has no such section. */
  async load() {
    try {
      this.#render(await this.#api.get(`/api/activity?lines=${SHOWN}`));
    } catch (error) {
      this.#say(`The activity was not loaded: ${error.message}.`);
    }
  }

  hide() {
    show(this.#section, false);
    this.#rows.replaceChildren();
  }

  #render({ audit, principal, records }) {
    show(this.#section, audit || principal !== "");
    setText(this.#title, principal ? `What ${principal} did` : "Who did what");
    this.#rows.replaceChildren(...records.map(row));
    const nothing = audit ? "Nothing was recorded yet." : "This hub writes no audit.";
    this.#say(records.length ? "" : nothing);
  }

  #say(text) {
    setText(this.#note, text);
    show(this.#note, text !== "");
  }
}

function row({ at, event, principal, program, server, method, tool, outcome, ms, reason }) {
  const about = [server, tool].filter(Boolean).join("/");
  const what = event === "call" ? about || method : [event, method, about].filter(Boolean).join(" ");
  return el(
    "tr",
    { "data-outcome": outcome },
    el("td", {}, el("time", {}, clock(at, Date.now() / 1000))),
    el("td", { title: program || null }, principal || "–"),
    el("td", {}, what),
    el("td", { title: reason || null }, outcome),
    el("td", { class: "number" }, ms ? milliseconds(ms) : ""),
  );
}
