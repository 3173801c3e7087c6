// The control API as this page uses it. The token goes into a header, never into a URL.
// The browser stores the page's own token, which ends with the hub; never the control token. A person who signed in as
// herself has a session in a cookie instead, which no script can read.

const KEPT = "holdfast.token";

/** The hub refused, with its reason, or did not answer. */
export class Refused extends Error {
  constructor(status, error, hint = "") {
    super(error);
    this.status = status;
    this.hint = hint;
  }
}

export class Api {
  #token = localStorage.getItem(KEPT);
  #known = false;
  /** Called when the hub no longer accepts the token. */
  onSignedOut = () => {};

  get signedIn() {
    return this.#token !== null || this.#known;
  }

  /** Who this browser is and what she may do; null if the hub does not know her. */
  async me() {
    try {
      const me = await this.#json("/api/me", {});
      this.#known = me.principal !== "";
      return me;
    } catch (error) {
      if (error.status === 401) return null;
      throw error;
    }
  }

  /** End the session of this browser. */
  async signOut() {
    await this.#json("/signout", { method: "POST" });
    this.#forget();
  }

  /** Exchange a one-time code for a session of this page. */
  async signIn(code) {
    const { token } = await this.#json("/api/session", { method: "POST", body: { code } }, null);
    this.#token = token;
    localStorage.setItem(KEPT, token);
  }

  /** Exchange the control token for a session of this page; the control token is not stored. */
  async signInByToken(controlToken) {
    const { code } = await this.#json("/api/codes", { method: "POST" }, controlToken);
    await this.signIn(code);
  }

  /** Sign in with the own token of a caller, if it is one. A token of an issuer is not stored: it ends soon. */
  async signInAsCaller(token) {
    const { principal } = await this.#json("/api/me", {}, token);
    if (principal === "") return false;
    this.#known = true;
    try {
      await this.#json("/signin/token", { method: "POST", body: { token } }, null);
      this.#token = null;
    } catch {
      this.#token = token;
    }
    return true;
  }

  get(path) {
    return this.#json(path, {});
  }

  post(path, body) {
    return this.#json(path, { method: "POST", body });
  }

  /** Open an event stream; the caller reads its body. */
  async open(path, signal, method = "GET") {
    const response = await this.#fetch(path, { method, signal, headers: { accept: "text/event-stream" } });
    return response.body;
  }

  #forget() {
    this.#token = null;
    this.#known = false;
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
      response = await fetch(path, { ...options, headers, cache: "no-store", credentials: "same-origin", redirect: "error" });
    } catch (error) {
      if (error.name === "AbortError") throw error;
      throw new Refused(0, "the hub does not answer", "Check that it is still running. This page keeps trying.");
    }
    if (response.ok) return response;
    const said = await response.json().catch(() => ({}));
    // After a second sign-in during this request, only the old token is not valid.
    if (response.status === 401 && used === this.#token && this.signedIn) {
      this.#forget();
      this.onSignedOut();
    }
    throw new Refused(response.status, said.error ?? `the hub answered ${response.status}`, said.hint);
  }
}
