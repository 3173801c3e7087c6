// A login to one server: the hub asks for it, the person visits the page of the authorization server.

import { el, field, show } from "./dom.js";
import { parser } from "./stream.js";

export class Login {
  #id;
  #api;
  #running = null;
  #state = "";
  #place;
  node;

  constructor(id, api) {
    this.#id = id;
    this.#api = api;
    this.#place = el("div", { class: "login-steps", "aria-live": "polite" });
    this.node = el("section", { class: "login", hidden: true }, el("h4", {}, "Log in"), this.#place);
  }

  update(server) {
    // After a login that helped, a new denial asks for another one.
    if (this.#state === "done" && !server.login) this.#state = "helped";
    if (server.login && (this.#state === "" || this.#state === "helped")) this.#offer();
    show(this.node, server.login || this.#state !== "");
  }

  /** A login ends with the request that began it. */
  close() {
    this.#running?.abort();
  }

  #offer(problem = null) {
    this.#state = "offer";
    this.#place.replaceChildren(
      ...(problem ? [el("p", { class: "note", "data-kind": "failed", role: "alert" }, problem)] : []),
      el("p", { class: "fine" }, "The server asks for a login. The hub keeps it, and renews it by itself."),
      el(
        "button",
        { type: "button", class: "primary", "data-role": "operate", on: { click: () => this.#begin() } },
        "Log in",
      ),
    );
  }

  async #begin() {
    this.#state = "busy";
    this.#place.replaceChildren(el("p", { class: "note", "data-kind": "busy" }, "Asking the server where to log in…"));
    this.#running = new AbortController();
    let over = false;
    const take = ({ type, data }) => {
      if (type === "visit") this.#visit(data);
      if (type === "done") this.#done();
      if (type === "failed") this.#offer(`${data.error}. ${data.hint ?? ""}`.trim());
      over ||= type !== "visit";
    };
    try {
      const body = await this.#api.open(this.#path(), this.#running.signal, "POST");
      const parse = parser(take);
      const reader = body.pipeThrough(new TextDecoderStream()).getReader();
      for (let part = await reader.read(); !part.done; part = await reader.read()) parse(part.value);
      if (!over) this.#offer("The login was cut off.");
    } catch (error) {
      if (error.name !== "AbortError" && !over) this.#offer(`${error.message}. ${error.hint ?? ""}`.trim());
    }
  }

  #visit({ address, issuer, scope }) {
    const { protocol, host } = new URL(address);
    if (protocol !== "https:" && protocol !== "http:") return this.#offer("The address of the login page is not valid.");
    const input = el("input", {
      id: "login-answer",
      type: "url",
      autocomplete: "off",
      spellcheck: "false",
      required: true,
    });
    const paste = el(
      "details",
      { class: "fold" },
      el("summary", {}, "The browser is on another machine"),
      el(
        "form",
        { on: { submit: (event) => this.#answer(event, input) } },
        el(
          "label",
          { for: "login-answer" },
          "After the login, the browser ends at a page that does not load. Paste its address:",
        ),
        el("div", { class: "field" }, input, el("button", { type: "submit" }, "Use it")),
      ),
    );
    const link = el(
      "a",
      { class: "button primary", href: address, target: "_blank", rel: "noopener noreferrer" },
      `Continue at ${host}`,
    );
    this.#place.replaceChildren(
      el(
        "p",
        {},
        "The login is at ",
        field("login.issuer", issuer, issuer, "code"),
        scope.length ? [", for ", field("login.scope", scope.join(" "), scope.join(" "), "code")] : "",
        ".",
      ),
      link,
      el("p", { class: "note", "data-kind": "busy" }, "This page waits for you."),
      paste,
    );
    link.focus();
    return undefined;
  }

  async #answer(event, input) {
    event.preventDefault();
    try {
      await this.#api.post(`${this.#path()}/answer`, { address: input.value.trim() });
    } catch (error) {
      this.#offer(`${error.message}. ${error.hint ?? ""}`.trim());
    }
  }

  #done() {
    this.#state = "done";
    this.#place.replaceChildren(el("p", { class: "note", "data-kind": "done" }, "Logged in, and connected."));
    show(this.node, true);
  }

  #path() {
    return `/api/servers/${encodeURIComponent(this.#id)}/login`;
  }
}
