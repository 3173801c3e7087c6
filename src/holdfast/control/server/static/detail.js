// The details of one server, under its open row.

import { Changed } from "./approvals.js";
import { el, setAttribute, setText, show } from "./dom.js";
import { Login } from "./login.js";
import { Logs } from "./logs.js";
import { activityParts, activityPicture, activityWords, stripBlocks, stripPicture, stripWords } from "./charts.js";
import { callWords, changes, factNodes, facts, lastError, legend, offerNodes, section } from "./facts.js";
import { duration } from "./format.js";

const CHART = 60;

export class Detail {
  #env;
  #row;
  #parts;
  #logs;
  #changed;
  #login;
  #shown = {};

  /** `env` has `api`, `fleet`, `act(id, verb)` and `window()`. */
  constructor(row, env) {
    this.#env = env;
    this.#row = row;
    this.#logs = new Logs(row.server.id, env.api);
    this.#changed = new Changed(row.server.id, { ...env, leave: () => row.opener.focus() });
    this.#login = new Login(row.server.id, env.api);
    this.#parts = this.#build();
    this.update();
  }

  close() {
    this.#logs.close();
    this.#login.close();
    this.#row.detail.replaceChildren();
  }

  #build() {
    const { id } = this.#row.server;
    const act = (verb, words) =>
      el("button", { type: "button", "data-role": "operate", on: { click: () => this.#env.act(id, verb) } }, words);
    const parts = {
      reconnect: act("reconnect", "Reconnect"),
      enable: act("enable", "Enable"),
      disable: act("disable", "Disable"),
      facts: el("dl", { class: "facts" }),
      error: el("div", { class: "last-error" }),
      strip: stripPicture({ class: "strip large" }),
      from: el("span", {}),
      changes: el("ol", { class: "changes" }),
      chart: activityPicture(CHART, { class: "chart" }),
      chartWords: el("p", { class: "fine" }),
      offers: el("div", { class: "offers" }),
    };
    const offers = el(
      "details",
      { class: "fold", on: { toggle: () => this.#loadOffers() } },
      el("summary", {}, "Tools, prompts and resources"),
      parts.offers,
    );
    parts.fold = offers;
    this.#row.detail.replaceChildren(
      el(
        "div",
        { class: "buttons", role: "group", "aria-label": `Actions for ${id}` },
        parts.reconnect,
        parts.enable,
        parts.disable,
      ),
      this.#login.node,
      this.#changed.node,
      el(
        "div",
        { class: "columns" },
        el(
          "div",
          { class: "column" },
          section(
            "States",
            parts.strip,
            el("p", { class: "axis", "aria-hidden": "true" }, parts.from, el("span", {}, "now")),
            legend(),
            parts.changes,
          ),
        ),
        el(
          "div",
          { class: "column" },
          section("Calls", parts.chart, parts.chartWords),
          section("Facts", parts.facts),
          parts.error,
          offers,
        ),
      ),
      section("Log", this.#logs.node),
    );
    return parts;
  }

  update() {
    const { server } = this.#row;
    const off = server.status === "disabled";
    const focused = document.activeElement;
    show(this.#parts.reconnect, !off);
    show(this.#parts.enable, off);
    show(this.#parts.disable, !off);
    // The pressed button is hidden now: the focus moves to the one that undoes it.
    if (focused === this.#parts.enable && !off) this.#parts.disable.focus();
    else if (off && (focused === this.#parts.disable || focused === this.#parts.reconnect)) this.#parts.enable.focus();
    this.#once("facts", facts(server), () => this.#parts.facts.replaceChildren(...factNodes(server)));
    this.#once("error", server.last_error, () =>
      this.#parts.error.replaceChildren(...lastError(server, this.#env.fleet.now)),
    );
    this.#once("changes", server.timeline, () =>
      this.#parts.changes.replaceChildren(...changes(server, this.#env.fleet.now)),
    );
    this.#once("activity", server.activity, () => this.#drawCalls(server.activity));
    this.#changed.update(server);
    this.#login.update(server);
    this.draw();
  }

  #once(name, value, render) {
    const text = JSON.stringify(value);
    if (this.#shown[name] === text) return;
    this.#shown[name] = text;
    render();
  }

  /** Draw the strip again; it moves with time. */
  draw() {
    const { now } = this.#env.fleet;
    const span = this.#env.window();
    const { strip, from } = this.#parts;
    strip.replaceChildren(...stripBlocks(this.#row.server, now - span, now, 2));
    setAttribute(strip, "aria-label", stripWords(this.#row.server, now - span, now));
    setText(from, `${duration(span)} ago`);
  }

  #drawCalls(activity) {
    const { chart, chartWords } = this.#parts;
    show(chart, Boolean(activity));
    chart.replaceChildren(...(activity ? activityParts(activity, { height: CHART, volume: true }) : []));
    setAttribute(chart, "aria-label", activityWords(activity));
    chartWords.replaceChildren(...(activity ? callWords(activity) : ["No recent calls."]));
  }

  /** The published catalog of the server changed. */
  republished() {
    this.#loadOffers();
  }

  async #loadOffers() {
    const { fold, offers } = this.#parts;
    if (!fold.open) return;
    try {
      const catalog = await this.#env.api.get("/api/catalog");
      offers.replaceChildren(...offerNodes(catalog, this.#row.server.id));
    } catch (error) {
      offers.replaceChildren(
        el("p", { class: "note", "data-kind": "failed", role: "alert" }, `Not loaded: ${error.message}.`),
      );
    }
  }
}
