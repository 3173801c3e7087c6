// What is known of the hub and its servers. It decides who needs a person; it draws nothing.

const order = new Intl.Collator("en", { numeric: true }).compare;

/** The groups, in the order in which they are read. */
export const GROUPS = [
  { key: "need", title: "Needs you", verb: ["needs you", "need you"], about: "The hub cannot mend these by itself." },
  {
    key: "coming",
    title: "Coming back",
    verb: ["is coming back", "are coming back"],
    about: "The hub is working on these; nothing to do.",
  },
  { key: "up", title: "Up", verb: ["is up", "are up"], about: "" },
  {
    key: "rest",
    title: "At rest",
    verb: ["is at rest", "are at rest"],
    about: "Switched off, or asleep until somebody calls.",
  },
];

// A server that comes up and dies again and again is back each time one looks: three times are no accident.
export const UNSTEADY = { falls: 3, seconds: 300 };
const MEANT = new Set(["ReconnectRequested", "SessionExpired", "ConfigChanged"]);

/** How often a connection was lost lately that nobody meant to end. */
export function fallsOf(server, now) {
  const fell = (step) => step.old === "connected" && kindOf(step.new) !== "rest" && !MEANT.has(step.cause);
  return server.timeline.filter((step) => step.at > now - UNSTEADY.seconds && fell(step)).length;
}

/** Where a server stands for the person who looks at it. */
export function groupOf(server, now) {
  if (server.status === "disabled" || server.status === "idle") return server.held.length ? "need" : "rest";
  if (server.status === "permanent" || server.status === "denied" || server.held.length) return "need";
  if (fallsOf(server, now) >= UNSTEADY.falls) return "need";
  if (server.status === "transient" || server.breaker.state !== "closed") return "coming";
  return "up";
}

/** The kind of a state on the timeline. */
export function kindOf(state) {
  return KINDS[state] ?? "coming";
}

const KINDS = {
  connected: "up",
  connecting: "coming",
  reconnecting: "coming",
  disconnected: "coming",
  denied: "need",
  permanently_failed: "need",
  idle: "rest",
  disabling: "rest",
  disabled: "rest",
};

export function byId(one, other) {
  return order(one, other);
}

export class Fleet {
  #servers = new Map();
  #skew = 0;
  hub = null;

  /** The hub's time: its clock decides, not the browser's. */
  get now() {
    return Date.now() / 1000 + this.#skew;
  }

  get servers() {
    return [...this.#servers.values()];
  }

  get(id) {
    return this.#servers.get(id);
  }

  setHub(hub) {
    this.hub = hub;
    this.#skew = hub.now - Date.now() / 1000;
  }

  /** Take a server's view; what it says in seconds from now becomes a time. */
  put(view) {
    const now = this.now;
    const due = (seconds) => (seconds === null || seconds === undefined ? null : now + seconds);
    const server = {
      ...view,
      due: due(view.retry_in),
      breakerDue: due(view.breaker.retry_in),
      falls: fallsOf(view, now),
      group: groupOf(view, now),
    };
    this.#servers.set(view.id, server);
    return server;
  }

  remove(id) {
    this.#servers.delete(id);
  }

  /** Those that have been steady for long enough since: time alone changed where they stand. */
  settled() {
    const { now } = this;
    return this.servers.filter((server) => server.falls >= UNSTEADY.falls && fallsOf(server, now) < UNSTEADY.falls);
  }

  /** How many servers each group has. */
  counts() {
    const counts = Object.fromEntries(GROUPS.map((group) => [group.key, 0]));
    for (const server of this.#servers.values()) counts[server.group] += 1;
    return counts;
  }
}
