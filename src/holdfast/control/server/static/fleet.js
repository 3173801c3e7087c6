// The state of the hub and its servers. It decides which group a server belongs to; it draws nothing.

const order = new Intl.Collator("en", { numeric: true }).compare;

/** The groups, in display order. */
export const GROUPS = [
  { key: "need", title: "Needs you", verb: ["needs you", "need you"], about: "These need a person. The hub looks at them again now and then." },
  {
    key: "coming",
    title: "Coming back",
    verb: ["is coming back", "are coming back"],
    about: "The hub reconnects these; no action is needed.",
  },
  { key: "up", title: "Up", verb: ["is up", "are up"], about: "" },
  {
    key: "rest",
    title: "Idle or disabled",
    verb: ["is idle or disabled", "are idle or disabled"],
    about: "Disabled by a person, or idle until the next call.",
  },
];

// A server that connects and is lost again and again looks connected most of the time: three losses count as flapping.
export const FLAPPING = { losses: 3, seconds: 300 };
const MEANT = new Set(["ReconnectRequested", "SessionExpired", "ConfigChanged"]);

/** How often a connection was lost recently, without those that were ended on purpose. */
export function lossesOf(server, now) {
  const isLoss = (step) => step.old === "connected" && kindOf(step.new) !== "rest" && !MEANT.has(step.cause);
  return server.timeline.filter((step) => step.at > now - FLAPPING.seconds && isLoss(step)).length;
}

/** The group of a server. */
export function groupOf(server, now) {
  if (server.status === "disabled" || server.status === "idle") return server.held.length ? "need" : "rest";
  if (server.status === "permanent" || server.status === "denied" || server.held.length) return "need";
  if (lossesOf(server, now) >= FLAPPING.losses) return "need";
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
  parked: "need",
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

  /** The time by the hub's clock, not the browser's. */
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

  /** Take the view of a server; seconds from now become points in time. */
  put(view) {
    const now = this.now;
    const due = (seconds) => (seconds === null || seconds === undefined ? null : now + seconds);
    const server = {
      ...view,
      due: due(view.retry_in),
      breakerDue: due(view.breaker.retry_in),
      losses: lossesOf(view, now),
      group: groupOf(view, now),
    };
    this.#servers.set(view.id, server);
    return server;
  }

  remove(id) {
    this.#servers.delete(id);
  }

  /** Servers that stopped flapping: their group changes by time alone. */
  settled() {
    const { now } = this;
    return this.servers.filter((server) => server.losses >= FLAPPING.losses && lossesOf(server, now) < FLAPPING.losses);
  }

  /** How many servers each group has. */
  counts() {
    const counts = Object.fromEntries(GROUPS.map((group) => [group.key, 0]));
    for (const server of this.#servers.values()) counts[server.group] += 1;
    return counts;
  }
}
