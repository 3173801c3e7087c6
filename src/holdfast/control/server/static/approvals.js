// Tools that changed since they were first seen, each with its diff and a button that approves it.

import { el, field, show } from "./dom.js";
import { count } from "./format.js";

// A tool's name alone, or the kind before the name.
const nameOf = ({ kind, tool }) => (kind === "tool" ? tool : `${kind} ${tool}`.trim());

export class Changed {
  #id;
  #env;
  #held = null;
  #shown = null;
  #approving = false;
  node;

  constructor(id, env) {
    this.#id = id;
    this.#env = env;
    this.node = el("section", { class: "changed", hidden: true });
  }

  update(server) {
    const held = JSON.stringify(server.held);
    if (held === this.#held) return;
    this.#held = held;
    this.#load();
  }

  async #load() {
    if (this.#approving) return;
    try {
      const { approvals } = await this.#env.api.get("/api/approvals");
      const own = approvals.filter((one) => one.server === this.#id);
      const text = JSON.stringify(own);
      // An equal list does not replace the one that the user reads.
      if (text !== this.#shown) this.#render(own);
      this.#shown = text;
    } catch (error) {
      this.#held = this.#shown = null;
      this.node.replaceChildren(
        el(
          "p",
          { class: "note", "data-kind": "failed", role: "alert" },
          `The changes were not loaded: ${error.message}.`,
        ),
      );
      show(this.node, true);
    }
  }

  #render(approvals) {
    show(this.node, approvals.length > 0);
    if (!approvals.length) return this.node.replaceChildren();
    const held = approvals.filter((one) => one.held).length;
    const title = held
      ? `${count(held, "change")} held until you approve`
      : `${count(approvals.length, "change")} since first seen`;
    const all = approvals.length > 1 ? this.#button("Approve all", "Approve all", approvals) : null;
    return this.node.replaceChildren(
      el("div", { class: "changed-head" }, el("h4", {}, title), all),
      el(
        "p",
        { class: "fine" },
        "What a server says of its tools, prompts and itself is an instruction to the model. Read the change before you approve it.",
      ),
      ...approvals.map((one) => this.#tool(one)),
    );
  }

  #tool(approval) {
    const { held, changes } = approval;
    const tool = nameOf(approval);
    const lines = changes.map((line) => el(LINES[line[0]] ?? "span", { class: "line" }, line));
    return el(
      "article",
      { class: "change" },
      el(
        "header",
        {},
        field("held", tool, tool, "code"),
        el("span", { class: "tag" }, `${approval.new ? "new, " : ""}${held ? "held" : "not held"}`),
        this.#button("Approve", `Approve ${tool}`, [approval]),
      ),
      lines.length
        ? el("pre", { class: "diff", tabindex: "0", role: "region", "aria-label": `What changed in ${tool}` }, ...lines)
        : null,
    );
  }

  #button(words, label, approvals) {
    const attributes = { type: "button", "data-role": "approve", "aria-label": label };
    return el("button", { ...attributes, on: { click: () => this.#approve(approvals) } }, words);
  }

  /** Send the mark of the shown change with each approval: a newer change is not approved unseen. */
  async #approve(approvals) {
    this.#approving = true;
    for (const { tool, kind, mark } of approvals) {
      await this.#env.act(this.#id, "approve", { tool: tool || null, kind, mark });
    }
    this.#approving = false;
    await this.#load();
    // The button is gone with its change: move the focus to the next one.
    const next = this.node.querySelector(".change button");
    if (document.activeElement !== document.body) return;
    if (next) next.focus();
    else this.#env.leave();
  }
}

const LINES = { "+": "ins", "-": "del" };
