// Announces to screen readers the servers that changed their group. Many changes at once become one sentence.

import { GROUPS } from "./fleet.js";
import { list } from "./format.js";

const PAUSE = 1500;
const FEW = 3;
const TITLES = Object.fromEntries(GROUPS.map((group) => [group.key, group.verb[0]]));

export class Announcer {
  #fleet;
  #node = document.getElementById("announcer");
  #changes = new Map();
  #timer = 0;
  #begun = false;

  constructor(fleet) {
    this.#fleet = fleet;
  }

  /** Announce changes from now on; the state at page load is not announced. */
  begin() {
    this.#begun = true;
  }

  note(before, server) {
    if (!this.#begun || before?.group === server.group) return;
    this.#changes.set(server.id, TITLES[server.group]);
    this.#timer ||= setTimeout(() => this.#tell(), PAUSE);
  }

  say(text) {
    this.#node.textContent = text;
  }

  #tell() {
    this.#timer = 0;
    const changes = [...this.#changes];
    this.#changes.clear();
    if (changes.length <= FEW) return this.say(`${list(changes.map(([id, verb]) => `${id} ${verb}`))}.`);
    return this.say(`${changes.length} servers changed. ${counted(this.#fleet.counts())}`);
  }
}

/** "2 servers need you, 1 is coming back and 3 are up." */
export function counted(counts) {
  const parts = GROUPS.filter(({ key }) => counts[key]).map(({ key, verb }, index) => {
    const number = counts[key];
    const what = index ? "" : number === 1 ? " server" : " servers";
    return `${number.toLocaleString("en")}${what} ${verb[number === 1 ? 0 : 1]}`;
  });
  return parts.length ? `${list(parts)}.` : "No servers are configured.";
}
