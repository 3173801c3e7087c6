// The logins of the one who signed in, to servers where each user has her own: which are missing, and two buttons.

import { copyable, el, setText, show } from "./dom.js";
import { clock, list } from "./format.js";

const AGAIN = 5000;
const STATES = {
  valid: { kind: "up", words: "Logged in" },
  ended: { kind: "need", words: "Your login has ended", login: "Log in again" },
  missing: { kind: "need", words: "Not logged in", login: "Log in" },
  not_needed: { kind: "rest", words: "Needs no login of yours" },
};

export class OwnLogins {
  #api;
  #section = document.getElementById("logins");
  #note = document.getElementById("logins-note");
  #rows = document.getElementById("logins-rows");
  #shown = "[]";
  #timer = 0;

  constructor(api) {
    this.#api = api;
  }

  /** Show the logins of a user. They also change elsewhere, such as in a conversation, so they are loaded again. */
  follow() {
    this.hide();
    this.load();
    this.#timer = setInterval(() => document.hidden || this.load(), AGAIN);
  }

  async load() {
    try {
      const { logins } = await this.#api.get("/api/logins");
      this.#render(logins);
    } catch (error) {
      // Without the hub the rest of the page says so.
      if (error.status >= 500) this.#say("failed", `Your logins were not loaded: ${error.message}.`);
    }
  }

  hide() {
    clearInterval(this.#timer);
    this.#render([]);
    this.#say("");
  }

  #render(logins) {
    const text = JSON.stringify(logins);
    // An equal list does not replace the one that the user reads.
    if (text === this.#shown) return;
    this.#shown = text;
    const focused = this.#rows.contains(document.activeElement);
    this.#rows.replaceChildren(...logins.map((login) => this.#row(login)));
    show(this.#section, logins.length > 0);
    if (focused) this.#rows.querySelector("button")?.focus();
  }

  #row({ server, state, command, ...more }) {
    const { kind, words, login } = STATES[state];
    const has = state === "valid" || state === "ended";
    const button = (text, act, style = "") =>
      el("button", { type: "button", class: style, "aria-label": `${text}: ${server}`, on: { click: act } }, text);
    return el(
      "li",
      { class: "own-login", "data-server": server, "data-state": state },
      el("span", { class: "own-login-server" }, server),
      el("span", { class: "state", "data-kind": kind }, words),
      el("span", { class: "fine" }, has ? details(more) : ""),
      el(
        "span",
        { class: "own-login-acts" },
        login && !command ? button(login, () => this.#logIn(server), "primary") : null,
        has ? button("Log out", () => this.#logOut(server)) : null,
      ),
      login && command ? el("p", { class: "own-login-command fine" }, "An operator can log you in:") : null,
      login && command ? el("div", { class: "command own-login-command" }, copyable(command, "the command")) : null,
    );
  }

  /** Go to the page of the hub that leads to the login. */
  async #logIn(server) {
    this.#say("busy", `Opening the login of ${server}…`);
    try {
      const { address } = await this.#api.post(`/api/logins/${encodeURIComponent(server)}/link`);
      location.assign(address);
    } catch (error) {
      this.#refused(error);
    }
  }

  async #logOut(server) {
    this.#say("busy", `Logging out of ${server}…`);
    try {
      const { revoked, also } = await this.#api.post(`/api/logins/${encodeURIComponent(server)}/end`);
      const where = list([server, ...also]);
      this.#say("done", `Logged out of ${where}.${revoked ? " The tokens are revoked." : " The tokens are removed here."}`);
    } catch (error) {
      this.#refused(error);
    }
    await this.load();
  }

  #refused(error) {
    this.#say("failed", `Not done: ${error.message}.${error.hint ? ` ${error.hint}.` : ""}`);
  }

  #say(kind, text = "") {
    setText(this.#note, text);
    show(this.#note, text !== "");
    this.#note.dataset.kind = kind;
    if (text) show(this.#section, true);
  }
}

function details({ issuer, scope, expires_at, refreshable }) {
  const ends = expires_at === null ? "" : `its token ends ${clock(expires_at, Date.now() / 1000)}`;
  const told = [issuer && `at ${issuer}`, scope && `for ${scope}`, refreshable ? "renewed automatically" : ends];
  return told.filter(Boolean).join(", ");
}
