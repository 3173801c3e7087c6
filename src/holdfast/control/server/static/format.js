// Formats numbers and states. Pure functions.

const clockFormat = new Intl.DateTimeFormat(undefined, {
  hour: "2-digit",
  minute: "2-digit",
  second: "2-digit",
  hourCycle: "h23",
});
const dayFormat = new Intl.DateTimeFormat(undefined, { month: "short", day: "numeric" });

/** "12 s", "3 min", "2 h 5 min", "4 d 2 h" */
export function duration(seconds) {
  const whole = Math.max(0, Math.round(seconds));
  if (whole < 60) return `${whole} s`;
  const minutes = Math.round(whole / 60);
  if (minutes < 60) return `${minutes} min`;
  const hours = Math.floor(minutes / 60);
  if (hours < 24) return minutes % 60 ? `${hours} h ${minutes % 60} min` : `${hours} h`;
  return hours % 24 ? `${Math.floor(hours / 24)} d ${hours % 24} h` : `${Math.floor(hours / 24)} d`;
}

/** The time left: to the second below ten minutes, so that it visibly moves. */
export function countdown(seconds) {
  const whole = Math.max(0, Math.ceil(seconds));
  if (whole < 60) return `${whole} s`;
  if (whole < 600) return `${Math.floor(whole / 60)} min ${String(whole % 60).padStart(2, "0")} s`;
  return duration(whole);
}

/** A time of day; with the day if it was not today. */
export function clock(at, now) {
  const then = new Date(at * 1000);
  const today = new Date(now * 1000).toDateString() === then.toDateString();
  return today ? clockFormat.format(then) : `${dayFormat.format(then)}, ${clockFormat.format(then)}`;
}

export function milliseconds(value) {
  if (value >= 10_000) return `${Math.round(value / 1000)} s`;
  if (value >= 1000) return `${(value / 1000).toFixed(1)} s`;
  return value < 10 ? `${value.toFixed(1)} ms` : `${Math.round(value)} ms`;
}

export function count(number, one, many = `${one}s`) {
  return `${number.toLocaleString("en")} ${number === 1 ? one : many}`;
}

/** A state as text. */
export function stateWord(state) {
  return state.replaceAll("_", " ");
}

/** The cause of a change as text: "DialSucceeded" is "dial succeeded". */
export function causeWord(cause) {
  return stateWord(cause.replace(/(?<=[a-z])(?=[A-Z])/g, " ").toLowerCase());
}

/** "a, b and c" */
export function list(parts) {
  return parts.length < 2 ? parts.join("") : `${parts.slice(0, -1).join(", ")} and ${parts.at(-1)}`;
}
