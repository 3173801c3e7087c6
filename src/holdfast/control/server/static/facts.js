// The parts of a server's details that show values: each is built from the view, and replaced when it changes.

import { el, field, sentence } from "./dom.js";
import { activitySums } from "./charts.js";
import { causeWord, clock, count, duration, milliseconds, stateWord } from "./format.js";

const SHOWN_CHANGES = 8;

export function section(title, ...children) {
  return el("section", { class: "part" }, el("h4", {}, title), ...children);
}

export function legend() {
  const entry = (kind, words) => el("li", {}, el("span", { class: `key ${kind}`, "aria-hidden": "true" }), words);
  return el(
    "ul",
    { class: "legend", "aria-hidden": "true" },
    entry("up", "connected"),
    entry("coming", "reconnecting"),
    entry("need", "failed or denied"),
    entry("rest", "idle or disabled"),
  );
}

export function facts(server) {
  const { generation, breaker, failures, attempts, attempts_allowed, in_flight, transport, target, verified } = server;
  const { tools, prompts, resources, templates, calls_total, errors_total, reconnects_total, reason, state, probed_by } = server;
  return [
    generation,
    breaker.state,
    failures,
    attempts,
    attempts_allowed,
    in_flight,
    transport,
    target,
    verified,
    tools,
    prompts,
    resources,
    templates,
    calls_total,
    errors_total,
    reconnects_total,
    reason,
    state,
    probed_by,
  ];
}

export function factNodes(server) {
  const fact = (title, ...value) => [el("dt", {}, title), el("dd", {}, ...value)];
  const number = (name, one, many) => [field(name, server[name]), ` ${server[name] === 1 ? one : (many ?? `${one}s`)}`];
  const listed = [
    ["tools", "tool"],
    ["prompts", "prompt"],
    ["resources", "resource"],
    ["templates", "template"],
  ].filter(([name]) => name === "tools" || server[name]);
  return [
    ...(server.reason ? fact("Reason", sentence("reason", server.reason)) : []),
    ...(server.target ? fact(server.transport === "stdio" ? "Command" : "Address", field("target", server.target, server.target, "code")) : []),
    ...fact(
      "Listed",
      ...listed.flatMap(([name, one], index) => [index ? ", " : "", ...number(name, one)]),
      field(
        "verified",
        server.verified,
        server.verified || !listed.some(([name]) => server[name]) ? "" : " (from an earlier run)",
      ),
    ),
    ...fact(
      "Connection",
      server.generation === null
        ? field("generation", null, "none")
        : ["number ", field("generation", server.generation)],
      ", ",
      field("transport", server.transport || "unknown", server.transport || "unknown transport"),
    ),
    ...fact("Breaker", field("breaker.state", server.breaker.state, stateWord(server.breaker.state))),
    ...(server.probed_by ? fact("Tried by", "replica ", field("probed_by", server.probed_by, server.probed_by, "code")) : []),
    ...fact(
      "Failures",
      field("failures", server.failures),
      " in a row; reconnects ",
      field("attempts", server.attempts),
      " of ",
      field("attempts_allowed", server.attempts_allowed),
    ),
    ...fact(
      "Calls",
      field("calls_total", server.calls_total),
      " in all, ",
      field("errors_total", server.errors_total),
      " failed, ",
      field("in_flight", server.in_flight),
      " in flight",
    ),
    ...fact(
      "Reconnected",
      field("reconnects_total", server.reconnects_total),
      server.reconnects_total === 1 ? " time" : " times",
    ),
  ];
}

export function lastError(server, now) {
  if (!server.last_error) return [];
  const { at, text } = server.last_error;
  return [
    el("h4", {}, "Last error, ", field("last_error.at", at, clock(at, now), "time")),
    sentence("last_error.text", text, "p", {
      class: "error-text",
      tabindex: "0",
      role: "region",
      "aria-label": "Last error",
    }),
  ];
}

export function changes(server, now) {
  const all = server.timeline
    .map((change, index) => [change, index])
    .reverse()
    .slice(0, SHOWN_CHANGES);
  if (!all.length) return [el("li", { class: "fine" }, "No change in this run of the hub.")];
  return all.map(([change, index]) => {
    const of = (name, text = change[name]) => field(`timeline.${index}.${name}`, change[name], text);
    return el(
      "li",
      {},
      field(`timeline.${index}.at`, change.at, clock(change.at, now), "time"),
      el(
        "span",
        { class: "step" },
        of("old", stateWord(change.old)),
        el("span", { "aria-label": " to " }, " → "),
        el("strong", {}, of("new", stateWord(change.new))),
      ),
      el(
        "span",
        { class: "cause" },
        of("cause", causeWord(change.cause)),
        change.reason ? [": ", sentence(`timeline.${index}.reason`, change.reason)] : "",
      ),
    );
  });
}

export function callWords(activity) {
  const { calls, errors, last, most } = activitySums(activity);
  const said = (name, value, text) => field(`activity.${name}`, value, text);
  return [
    "Last ",
    said("step", activity.step, duration(activity.step * activity.calls.length)),
    ": ",
    said("calls.sum", calls, count(calls, "call")),
    ", ",
    said("errors.sum", errors, `${errors} failed`),
    ...(last === null
      ? []
      : [
          "; median ",
          said("milliseconds.last", last, milliseconds(last)),
          ", at most ",
          said("milliseconds.most", most, milliseconds(most)),
        ]),
    ".",
  ];
}

export function offerNodes(catalog, id) {
  const kinds = [
    ["tools", "Tools"],
    ["prompts", "Prompts"],
    ["resources", "Resources"],
    ["templates", "Templates"],
  ];
  const parts = kinds
    .map(([key, title]) => [title, catalog[key].filter((item) => item.server === id)])
    .filter(([, items]) => items.length);
  if (!parts.length) return [el("p", { class: "fine" }, "Nothing is listed.")];
  return parts.flatMap(([title, items]) => [
    el("h5", {}, title),
    el(
      "ul",
      {},
      items.map((item) =>
        el(
          "li",
          {},
          el("code", {}, item.name),
          item.held ? el("span", { class: "tag" }, "held") : "",
          item.description ? el("span", { class: "fine" }, ` ${item.description}`) : "",
        ),
      ),
    ),
  ]);
}
