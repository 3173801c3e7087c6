// The log of one server: the stderr of its process and the hub's own lines; the last lines, then new ones.

import { el } from "./dom.js";
import { Stream } from "./stream.js";
import { clock } from "./format.js";

const KEPT = 500;
const FETCHED = 200;

export class Logs {
  #id;
  #api;
  #stream;
  #waiting = [];
  #loaded = false;
  #lines;
  node;

  constructor(id, api) {
    this.#id = id;
    this.#api = api;
    this.#lines = el(
      "div",
      { class: "log", role: "log", "aria-live": "off", "aria-label": `Log of ${id}`, tabindex: "0" },
      el("p", { class: "fine" }, "Loading…"),
    );
    this.node = this.#lines;
    this.#stream = new Stream(api, `${this.#path()}/stream`, { onEvent: (event) => this.#take(event) });
    this.#stream.start();
    this.#load();
  }

  close() {
    this.#stream.stop();
  }

  #path() {
    return `/api/servers/${encodeURIComponent(this.#id)}/logs`;
  }

  async #load() {
    try {
      const { lines } = await this.#api.get(`${this.#path()}?lines=${FETCHED}`);
      const last = lines.at(-1)?.at ?? 0;
      this.#lines.replaceChildren(
        ...(lines.length ? lines.map(lineNode) : [el("p", { class: "fine" }, "The log is empty.")]),
      );
      this.#loaded = lines.length > 0;
      this.#waiting.filter((line) => line.at > last).forEach((line) => this.#append(line));
      this.#lines.scrollTop = this.#lines.scrollHeight;
    } catch (error) {
      this.#lines.replaceChildren(
        el("p", { class: "note", "data-kind": "failed" }, `The log was not loaded: ${error.message}.`),
      );
    }
    this.#waiting = null;
  }

  #take({ type, data }) {
    if (type !== "line") return;
    if (this.#waiting) this.#waiting.push(data);
    else this.#append(data);
  }

  #append(line) {
    const log = this.#lines;
    const atEnd = log.scrollHeight - log.scrollTop - log.clientHeight < 8;
    if (!this.#loaded) log.replaceChildren();
    this.#loaded = true;
    log.append(lineNode(line));
    if (log.childElementCount > KEPT) log.firstElementChild.remove();
    if (atEnd) log.scrollTop = log.scrollHeight;
  }
}

function lineNode({ at, source, level, text }) {
  return el(
    "p",
    { class: `line ${source}`, "data-level": level || null },
    el("time", {}, clock(at, Date.now() / 1000)),
    el("span", { class: "source" }, source),
    el("span", { class: "text" }, text),
  );
}
