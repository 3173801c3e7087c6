// The hub's events. EventSource cannot send a token in a header, so fetch reads the stream.

import { Refused } from "./api.js";

const DELAYS = [0.5, 1, 2, 4, 8, 15];
// The hub sends something every 15 s. After twice that time without data the connection counts as lost.
const SILENCE = 32;

/** Follows one stream and reconnects it; `touch` is the state of the connection. */
export class Stream {
  #api;
  #path;
  #onEvent;
  #onTouch;
  #stop = null;
  #wake = () => {};
  touch = { state: "connecting", heard: null, lost: null, retry: null };

  constructor(api, path, { onEvent, onTouch = () => {} }) {
    this.#api = api;
    this.#path = path;
    this.#onEvent = onEvent;
    this.#onTouch = onTouch;
  }

  start() {
    if (this.#stop) return;
    this.#stop = new AbortController();
    this.#run(this.#stop.signal);
  }

  stop() {
    this.#stop?.abort();
    this.#stop = null;
    this.#wake();
  }

  /** Retry at once, if it waits for the next try. */
  nudge() {
    this.#wake();
  }

  async #run(stopped) {
    for (let failures = 0; !stopped.aborted; failures += 1) {
      try {
        await this.#follow(stopped, () => (failures = 0));
      } catch (error) {
        if (stopped.aborted || (error instanceof Refused && error.status === 401)) return;
      }
      if (stopped.aborted) return;
      await this.#pause(DELAYS[Math.min(failures, DELAYS.length - 1)] * (0.8 + 0.4 * Math.random()));
    }
  }

  async #follow(stopped, onHeard) {
    const one = new AbortController();
    const signal = AbortSignal.any([stopped, one.signal]);
    let watchdog = setTimeout(() => one.abort(), SILENCE * 1000);
    try {
      const body = await this.#api.open(this.#path, signal);
      const reader = body.pipeThrough(new TextDecoderStream()).getReader();
      const parse = parser((event) => this.#onEvent(event));
      for (let part = await reader.read(); !part.done; part = await reader.read()) {
        clearTimeout(watchdog);
        watchdog = setTimeout(() => one.abort(), SILENCE * 1000);
        onHeard();
        this.#tell({ state: "live", heard: Date.now() / 1000, lost: null, retry: null });
        parse(part.value);
      }
    } finally {
      clearTimeout(watchdog);
    }
  }

  async #pause(seconds) {
    const now = Date.now() / 1000;
    this.#tell({ state: "lost", lost: this.touch.lost ?? now, retry: now + seconds });
    await new Promise((resolve) => {
      const timer = setTimeout(resolve, seconds * 1000);
      this.#wake = () => {
        clearTimeout(timer);
        resolve();
      };
    });
    this.#tell({ retry: null });
  }

  #tell(change) {
    this.touch = { ...this.touch, ...change };
    this.#onTouch(this.touch);
  }
}

/** Takes the stream in chunks and emits whole events. */
export function parser(emit) {
  let rest = "";
  let event = { type: "message", data: [] };
  const line = (text) => {
    if (text === "") {
      if (event.data.length) emit({ type: event.type, data: JSON.parse(event.data.join("\n")) });
      event = { type: "message", data: [] };
      return;
    }
    const [, name, value] = /^([^:]*):? ?(.*)$/s.exec(text);
    if (name === "event") event.type = value;
    else if (name === "data") event.data.push(value);
  };
  return (text) => {
    const lines = (rest + text).split(/\r\n|\n/);
    rest = lines.pop();
    lines.forEach(line);
  };
}
