// Signing in: at the issuer, with a one-time code in the URL, with the hub's control token, or with a caller's own token.

import { copyable, setText, show } from "./dom.js";

export class SignIn {
  #api;
  #onDone;
  #section = document.getElementById("sign-in");
  #reason = document.getElementById("sign-in-reason");
  #input = document.getElementById("token");

  constructor(api, onDone) {
    this.#api = api;
    this.#onDone = onDone;
    const issuer = document.getElementById("sign-in-issuer");
    show(issuer, issuer.dataset.issuer === "yes");
    const command = document.getElementById("sign-in-command");
    command.append(...copyable(command.dataset.command, "the command"));
    document.getElementById("sign-in-form").addEventListener("submit", (event) => this.#submit(event));
  }

  show(reason = "") {
    show(this.#section, true);
    this.#say(reason);
  }

  hide() {
    show(this.#section, false);
    this.#input.value = "";
  }

  /** Use the code in the URL, if there is one; it is removed from the URL first, so that it is not copied. */
  async useCode() {
    const code = new URLSearchParams(location.hash.slice(1)).get("code");
    if (code === null) return;
    history.replaceState(null, "", `${location.pathname}${location.search}`);
    try {
      await this.#api.signIn(code);
      this.#onDone();
    } catch (error) {
      const why =
        error.status === 0
          ? "The hub does not answer."
          : "That code was not accepted: a code works once, for 10 minutes.";
      // A signed-in user needs no code.
      if (!this.#api.signedIn)
        this.show(`${why} ${error.status === 0 ? error.hint : "Run the command again for a new one."}`);
    }
  }

  async #submit(event) {
    event.preventDefault();
    const token = this.#input.value.trim();
    try {
      if (!(await this.#api.signInAsCaller(token))) await this.#api.signInByToken(token);
      return this.#onDone();
    } catch (error) {
      this.show(error.status === 401 ? "That is not this hub’s control token, nor the token of a caller." : `Not signed in: ${error.message}.`);
      return this.#input.focus();
    }
  }

  #say(reason) {
    setText(this.#reason, reason);
    show(this.#reason, reason !== "");
    this.#reason.dataset.kind = "failed";
  }
}
