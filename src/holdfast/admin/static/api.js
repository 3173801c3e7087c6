// The control API, as this page uses it. The token goes into a header, never into an address.
// What is kept is a token of this page's own, which ends with the hub; never the control token.

const KEPT = "holdfast.token";

/** Why the hub refused, or that it did not answer. */
export class Refused extends Error {
  constructor(status, error, hint = "") {
    super(error);
    this.status = status;
    this.hint = hint;
  }
}

export class Api {
  #token = localStorage.getItem(KEPT);
  /** Called when the hub does not know the token (any more). */
  onSignedOut = () => {};

  get signedIn() {
    return this.#token !== null;
  }

  /** Turn a one-time code into a session of this page. */
  async signIn(code) {
    const { token } = await this.#json("/api/session", { method: "POST", body: { code } }, null);
    this.#token = token;
    localStorage.setItem(KEPT, token);
  }

  /** Turn the control token into a session of this page, and forget it. */
  async signInByToken(controlToken) {
    const { code } = await this.#json("/api/codes", { method: "POST" }, controlToken);
    await this.signIn(code);
  }

  get(path) {
    return this.#json(path, {});
  }

  post(path, body) {
    return this.#json(path, { method: "POST", body });
  }

  /** An answer that goes on: its body is read as it comes. */
  async open(path, signal) {
    const response = await this.#fetch(path, { signal, headers: { accept: "text/event-stream" } });
    return response.body;
  }

  #forget() {
    this.#token = null;
    localStorage.removeItem(KEPT);
  }

  async #json(path, { method = "GET", body }, used = this.#token) {
    const headers = body === undefined ? {} : { "content-type": "application/json" };
    const response = await this.#fetch(path, { method, headers, body: body && JSON.stringify(body) }, used);
    return response.json();
  }

  async #fetch(path, options, used = this.#token) {
    const headers = { ...options.headers, ...(used ? { authorization: `Bearer ${used}` } : {}) };
    let response;
    try {
      response = await fetch(path, { ...options, headers, cache: "no-store", credentials: "omit", redirect: "error" });
    } catch (error) {
      if (error.name === "AbortError") throw error;
      throw new Refused(0, "the hub does not answer", "Is it still running? This page goes on asking.");
    }
    if (response.ok) return response;
    const said = await response.json().catch(() => ({}));
    // A second sign-in may have happened while this request was under way: then it is not this token's end.
    if (response.status === 401 && used !== null && used === this.#token) {
      this.#forget();
      this.onSignedOut();
    }
    throw new Refused(response.status, said.error ?? `the hub answered ${response.status}`, said.hint);
  }
}
