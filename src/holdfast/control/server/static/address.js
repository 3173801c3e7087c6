// What the user looks for, in the address of the page: it survives a reload, and can be sent to a colleague.

import { GROUPS } from "./fleet.js";

const KEYS = new Set(GROUPS.map((group) => group.key));

/** The filter and the open server, as the address has them. */
export function readAddress() {
  const query = new URLSearchParams(location.search);
  const only = query.get("show");
  return { text: query.get("find") ?? "", only: KEYS.has(only) ? only : null, server: query.get("server") };
}

/** Change some of them. The history gets no new entry: Back leaves the page. */
export function writeAddress(change) {
  const { text, only, server } = { ...readAddress(), ...change };
  const query = new URLSearchParams();
  if (text) query.set("find", text);
  if (only) query.set("show", only);
  if (server) query.set("server", server);
  const search = query.size ? `?${query}` : "";
  if (search !== location.search) history.replaceState(null, "", `${location.pathname}${search}${location.hash}`);
}
