// Everything about one server, under its row, while that is open.

import { el, field, setAttribute, setText, show } from "./dom.js";
import { Logs } from "./logs.js";
import { activityParts, activityPicture, activitySums, activityWords, stripBlocks, stripPicture, stripWords } from "./pictures.js";
import { Changed } from "./changed.js";
import { causeWord, clock, count, duration, milliseconds, stateWord } from "./words.js";

const CHART = 60;
const SHOWN_CHANGES = 8;

export class Detail {
  #env;
  #row;
  #parts;
  #logs;
  #changed;
  #shown = {};

  /** `env` has `api`, `fleet`, `act(id, verb)` and `window()`. */
  constructor(row, env) {
    this.#env = env;
    this.#row = row;
    this.#logs = new Logs(row.server.id, env.api);
    this.#changed = new Changed(row.server.id, env);
    this.#parts = this.#build();
    this.update();
  }

  close() {
    this.#logs.close();
    this.#row.detail.replaceChildren();
  }

  #build() {
    const { id } = this.#row.server;
    const act = (verb, words) => el("button", { type: "button", on: { click: () => this.#env.act(id, verb) } }, words);
    const parts = {
      reconnect: act("reconnect", "Reconnect"),
      enable: act("enable", "Switch on"),
      disable: act("disable", "Switch off"),
      facts: el("dl", { class: "facts" }),
      error: el("div", { class: "last-error" }),
      strip: stripPicture({ class: "strip large" }),
      from: el("span", {}),
      changes: el("ol", { class: "changes" }),
      chart: activityPicture(CHART, { class: "chart" }),
      chartWords: el("p", { class: "fine" }),
      offers: el("div", { class: "offers" }),
    };
    const offers = el("details", { class: "fold", on: { toggle: () => this.#loadOffers() } }, el("summary", {}, "What it offers"), parts.offers);
    parts.fold = offers;
    this.#row.detail.replaceChildren(
      el("div", { class: "buttons", role: "group", "aria-label": `What can be done with ${id}` }, parts.reconnect, parts.enable, parts.disable),
      this.#changed.node,
      el(
        "div",
        { class: "columns" },
        el(
          "div",
          { class: "column" },
          section("States", parts.strip, el("p", { class: "axis", "aria-hidden": "true" }, parts.from, el("span", {}, "now")), legend(), parts.changes),
        ),
        el("div", { class: "column" }, section("Calls", parts.chart, parts.chartWords), section("Facts", parts.facts), parts.error, offers),
      ),
      section("Log", this.#logs.node),
    );
    return parts;
  }

  update() {
    const { server } = this.#row;
    const off = server.status === "disabled";
    show(this.#parts.reconnect, !off);
    show(this.#parts.enable, off);
    show(this.#parts.disable, !off);
    this.#once("facts", facts(server), () => this.#parts.facts.replaceChildren(...factNodes(server)));
    this.#once("error", server.last_error, () => this.#parts.error.replaceChildren(...lastError(server, this.#env.fleet.now)));
    this.#once("changes", server.timeline, () => this.#parts.changes.replaceChildren(...changes(server, this.#env.fleet.now)));
    this.#once("activity", server.activity, () => this.#drawCalls(server.activity));
    this.#changed.update(server);
    this.draw();
  }

  #once(name, value, render) {
    const text = JSON.stringify(value);
    if (this.#shown[name] === text) return;
    this.#shown[name] = text;
    render();
  }

  /** The strip moves with time. */
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
    chartWords.replaceChildren(...(activity ? callWords(activity) : ["No calls lately."]));
  }

  /** What the hub published of it has changed. */
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
      offers.replaceChildren(el("p", { class: "note", "data-kind": "failed", role: "alert" }, `Not loaded: ${error.message}.`));
    }
  }
}

function section(title, ...children) {
  return el("section", { class: "part" }, el("h4", {}, title), ...children);
}

function legend() {
  const entry = (kind, words) => el("li", {}, el("span", { class: `key ${kind}`, "aria-hidden": "true" }), words);
  return el("ul", { class: "legend", "aria-hidden": "true" }, entry("up", "connected"), entry("coming", "on its way"), entry("need", "failed or denied"), entry("rest", "at rest"));
}

function facts(server) {
  const { generation, breaker, failures, attempts, attempts_allowed, in_flight, transport, target, verified } = server;
  const { tools, prompts, resources, templates, calls_total, errors_total, reconnects_total, reason, state } = server;
  return [generation, breaker.state, failures, attempts, attempts_allowed, in_flight, transport, target, verified, tools, prompts, resources, templates, calls_total, errors_total, reconnects_total, reason, state];
}

function factNodes(server) {
  const fact = (title, ...value) => [el("dt", {}, title), el("dd", {}, ...value)];
  const number = (name, one, many) => [field(name, server[name]), ` ${server[name] === 1 ? one : (many ?? `${one}s`)}`];
  const listed = [["tools", "tool"], ["prompts", "prompt"], ["resources", "resource"], ["templates", "template"]].filter(([name]) => name === "tools" || server[name]);
  return [
    ...(server.reason ? fact("Reason", field("reason", server.reason)) : []),
    ...fact("Listed", ...listed.flatMap(([name, one], index) => [index ? ", " : "", ...number(name, one)]), field("verified", server.verified, server.verified ? "" : " (from an earlier run)")),
    ...fact("Connection", server.generation === null ? field("generation", null, "none stands") : ["number ", field("generation", server.generation)], ", ", field("transport", server.transport || "unknown", server.transport || "unknown transport")),
    ...fact("Breaker", field("breaker.state", server.breaker.state, stateWord(server.breaker.state))),
    ...fact("Failures", field("failures", server.failures), " in a row; reconnects ", field("attempts", server.attempts), " of ", field("attempts_allowed", server.attempts_allowed)),
    ...fact("Calls", field("calls_total", server.calls_total), " in all, ", field("errors_total", server.errors_total), " failed, ", field("in_flight", server.in_flight), " under way"),
    ...fact("Came back", field("reconnects_total", server.reconnects_total), server.reconnects_total === 1 ? " time" : " times"),
  ];
}

function lastError(server, now) {
  if (!server.last_error) return [];
  const { at, text } = server.last_error;
  return [
    el("h4", {}, "Last error, ", field("last_error.at", at, clock(at, now), "time")),
    field("last_error.text", text, text, "p", { class: "error-text" }),
  ];
}

function changes(server, now) {
  const all = server.timeline.map((change, index) => [change, index]).reverse().slice(0, SHOWN_CHANGES);
  if (!all.length) return [el("li", { class: "fine" }, "No change since the hub has seen it.")];
  return all.map(([change, index]) => {
    const of = (name, text = change[name]) => field(`timeline.${index}.${name}`, change[name], text);
    return el(
      "li",
      {},
      field(`timeline.${index}.at`, change.at, clock(change.at, now), "time"),
      el("span", { class: "step" }, of("old", stateWord(change.old)), el("span", { "aria-label": " to " }, " → "), el("strong", {}, of("new", stateWord(change.new)))),
      el("span", { class: "cause" }, of("cause", causeWord(change.cause)), change.reason ? [": ", of("reason")] : ""),
    );
  });
}

function callWords(activity) {
  const { calls, errors, last, most } = activitySums(activity);
  const said = (name, value, text) => field(`activity.${name}`, value, text);
  return [
    "Last ", said("step", activity.step, duration(activity.step * activity.calls.length)), ": ",
    said("calls.sum", calls, count(calls, "call")), ", ",
    said("errors.sum", errors, `${errors} failed`),
    ...(last === null ? [] : ["; median ", said("milliseconds.last", last, milliseconds(last)), ", at most ", said("milliseconds.most", most, milliseconds(most))]),
    ".",
  ];
}

function offerNodes(catalog, id) {
  const kinds = [["tools", "Tools"], ["prompts", "Prompts"], ["resources", "Resources"], ["templates", "Templates"]];
  const parts = kinds.map(([key, title]) => [title, catalog[key].filter((item) => item.server === id)]).filter(([, items]) => items.length);
  if (!parts.length) return [el("p", { class: "fine" }, "Nothing is listed.")];
  return parts.flatMap(([title, items]) => [
    el("h5", {}, title),
    el("ul", {}, items.map((item) => el("li", {}, el("code", {}, item.name), item.held ? el("span", { class: "tag" }, "held") : "", item.description ? el("span", { class: "fine" }, ` ${item.description}`) : ""))),
  ]);
}
