// Charts over time: the states of a server as a strip, its calls as a small chart. Each has a text alternative.
//
// The worse a state, the taller its block, so that the strip can be read without its colours.

import { el, field, svg } from "./dom.js";
import { kindOf } from "./fleet.js";
import { count, duration, list, milliseconds, stateWord } from "./format.js";

const WIDTH = 1000;
const HEIGHTS = { rest: 2, up: 4, coming: 11, need: 20 };
const FULL = 20;
const LULL = 6;
const WINDOWS = [60, 120, 180, 300, 600, 900, 1200, 1800, 2700, 3600];

/** The time span of all strips; it is equal, so that common failures line up. */
export function windowFor(uptime) {
  return WINDOWS.find((seconds) => uptime <= seconds) ?? WINDOWS.at(-1);
}

/** The states of a server since `from`, each with start and end. */
export function segments(server, from, now) {
  const steps = server.timeline.length ? server.timeline : [{ at: server.since, new: server.state }];
  return steps
    .map((step, index) => ({ state: step.new, start: Math.max(step.at, from), end: steps[index + 1]?.at ?? now }))
    .filter((segment) => segment.end > segment.start);
}

/** The blocks of a strip of WIDTH by FULL; `hair` is the smallest visible width. */
export function stripBlocks(server, from, now, hair) {
  const scale = WIDTH / (now - from);
  const blocks = segments(server, from, now).map(({ state, start, end }) => {
    const kind = kindOf(state);
    const width = Math.max((end - start) * scale, hair);
    return { kind, x: Math.min((start - from) * scale, WIDTH - width), width, height: HEIGHTS[kind] };
  });
  // The tallest last: a short failure is not hidden by later blocks.
  blocks.sort((one, other) => one.height - other.height);
  return blocks.map(({ kind, x, width, height }) =>
    svg("rect", { class: `block ${kind}`, x: x.toFixed(1), y: FULL - height, width: width.toFixed(1), height }),
  );
}

export function stripPicture(attributes) {
  return svg("svg", { viewBox: `0 0 ${WIDTH} ${FULL}`, preserveAspectRatio: "none", role: "img", ...attributes });
}

/** The text alternative of the strip. */
export function stripWords(server, from, now) {
  const spent = new Map();
  for (const { state, start, end } of segments(server, from, now))
    spent.set(state, (spent.get(state) ?? 0) + end - start);
  const parts = [...spent]
    .sort((one, other) => other[1] - one[1])
    .map(([state, time]) => `${stateWord(state)} ${duration(time)}`);
  const changes = server.timeline.filter((step) => step.at >= from).length;
  return `In the last ${duration(now - from)}: ${list(parts) || "no data"}; ${count(changes, "change")}.`;
}

/** Sums of the last minutes. */
export function activitySums(activity) {
  const add = (numbers) => numbers.reduce((sum, number) => sum + number, 0);
  const times = activity.milliseconds.filter((value) => value !== null);
  return {
    calls: add(activity.calls),
    errors: add(activity.errors),
    last: times.at(-1) ?? null,
    most: times.length ? Math.max(...times) : null,
  };
}

export function activityWords(activity) {
  if (!activity) return "No recent calls.";
  const { calls, errors, last, most } = activitySums(activity);
  const span = duration(activity.step * activity.calls.length);
  const speed = last === null ? "" : `; ${milliseconds(last)} at the median now, ${milliseconds(most)} at most`;
  return `In the last ${span}: ${count(calls, "call")}, ${errors} failed${speed}.`;
}

/** The numbers beside the small chart, with their units. */
export function activityNumbers(activity) {
  if (!activity) return [];
  const { calls, errors, last } = activitySums(activity);
  const value = (name, number, text) => field(`activity.${name}`, number, text);
  return [
    last === null ? null : [value("milliseconds.last", last, milliseconds(last)), el("span", { class: "dot" }, " · ")],
    value("calls.sum", calls, count(calls, "call")),
    errors ? el("strong", {}, value("errors.sum", errors, `${errors} failed`)) : null,
  ]
    .flat()
    .filter(Boolean);
}

/** Latency as a line, failures as bars from the bottom; with `volume`, calls as pale columns too. */
export function activityParts(activity, { height, volume = false }) {
  const steps = Math.max(activity.calls.length, 1);
  const step = WIDTH / steps;
  const most = Math.max(...activity.calls, 1);
  const parts = [];
  activity.calls.forEach((calls, index) => {
    const errors = activity.errors[index] ?? 0;
    const column = (number) => (number / most) * height;
    if (volume && calls) parts.push(bar("volume", index, step, column(calls), height));
    if (errors) parts.push(bar("errors", index, step, Math.max(column(errors), height * 0.3), height));
  });
  return [...parts, ...latencyLines(activity.milliseconds, step, height)];
}

function bar(kind, index, step, tall, height) {
  const width = Math.max(step * 0.7, 4);
  return svg("rect", {
    class: kind,
    x: (index * step + (step - width) / 2).toFixed(1),
    y: (height - tall).toFixed(1),
    width: width.toFixed(1),
    height: tall.toFixed(1),
  });
}

/** One line through the medians; it breaks where there were no calls. A single value is a dash. */
function latencyLines(values, step, height) {
  const top = Math.max(...values.map((value) => value ?? 0), 1);
  const runs = [];
  let before = -Infinity;
  values.forEach((value, index) => {
    if (value === null) return;
    if (index - before > LULL) runs.push([]);
    runs.at(-1).push([(index + 0.5) * step, height - 1.5 - (value / top) * (height - 3)]);
    before = index;
  });
  return runs.map((run) => {
    const [[x, y]] = run;
    const points =
      run.length === 1
        ? [
            [x - step / 2, y],
            [x + step / 2, y],
          ]
        : run;
    const text = points.map((pair) => pair.map((number) => number.toFixed(1)).join(",")).join(" ");
    return svg("polyline", { class: "latency", points: text, "vector-effect": "non-scaling-stroke" });
  });
}

export function activityPicture(height, attributes) {
  return svg("svg", { viewBox: `0 0 ${WIDTH} ${height}`, preserveAspectRatio: "none", role: "img", ...attributes });
}

const SIGNS = {
  need: ["M8 1.6 15.2 14.4H.8Z", "M8 6v4M8 12v.4"],
  coming: ["M8 1.5a6.5 6.5 0 1 0 0 13 6.5 6.5 0 0 0 0-13Z", "M8 4.5V8l2.4 1.6"],
  up: ["M8 1.5a6.5 6.5 0 1 0 0 13 6.5 6.5 0 0 0 0-13Z", "m5 8.2 2.1 2.1L11 6"],
  rest: ["M8 1.5a6.5 6.5 0 1 0 0 13 6.5 6.5 0 0 0 0-13Z", "M6.4 6v4M9.6 6v4"],
};

/** The icon of a group; each has its own shape. */
export function sign(group) {
  const [outline, mark] = SIGNS[group];
  return svg(
    "svg",
    { class: `sign ${group}`, viewBox: "0 0 16 16", "aria-hidden": "true" },
    svg("path", { class: "outline", d: outline }),
    svg("path", { class: "mark", d: mark }),
  );
}
