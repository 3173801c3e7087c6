// Creates and changes elements. Text only becomes text nodes: text of a server cannot become markup.

const SVG = "http://www.w3.org/2000/svg";

/** An element with its attributes and children; `on` maps event names to handlers. */
export function el(tag, attributes = {}, ...children) {
  return furnish(document.createElement(tag), attributes, children);
}

/** The same for the inside of a picture. */
export function svg(tag, attributes = {}, ...children) {
  return furnish(document.createElementNS(SVG, tag), attributes, children);
}

function furnish(node, { on = {}, ...attributes }, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === true) node.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) node.setAttribute(name, value);
  }
  for (const [name, handler] of Object.entries(on)) node.addEventListener(name, handler);
  node.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== ""));
  return node;
}

/** Change a text only if it is another one, so that an idle page stays idle and a selection survives. */
export function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

export function setAttribute(node, name, value) {
  if (value === null || value === false) node.removeAttribute(name);
  else if (node.getAttribute(name) !== String(value)) node.setAttribute(name, value);
}

export function show(node, visible) {
  // By its attribute: the property is HTML's alone, and pictures are hidden too.
  if (node.hasAttribute("hidden") === visible) node.toggleAttribute("hidden", !visible);
}

/** A value of the control API: the element says which field it shows and what was in it. */
export function field(name, value, text = String(value), tag = "span", attributes = {}) {
  return el(tag, { ...attributes, "data-field": name, "data-value": String(value) }, text);
}

/** The same for a sentence of the hub. */
export function sentence(name, value, tag = "span", attributes = {}) {
  return el(tag, { ...attributes, "data-field": name, "data-value": value }, words(value));
}

/** Words of the hub; what stands in backticks is code. */
export function setWords(node, value) {
  if (node.dataset.value === value) return;
  node.dataset.value = value;
  node.replaceChildren(...words(value));
}

export function words(text) {
  return text.split(/`([^`]+)`/).map((part, index) => (index % 2 ? el("code", {}, part) : part));
}

/** Change the value of a field. */
export function setField(node, value, text = String(value)) {
  setAttribute(node, "data-value", String(value));
  setText(node, text);
}

/** A command or an address with a button that copies it. */
export function copyable(content, what) {
  const code = el("code", {}, content);
  const button = el("button", { type: "button", class: "copy", "aria-label": `Copy ${what}`, on: { click } }, "Copy");
  let timer = 0;
  async function click() {
    const copied = await copy(code);
    setText(button, copied ? "Copied" : "Press Ctrl-C");
    clearTimeout(timer);
    timer = setTimeout(() => setText(button, "Copy"), 2000);
  }
  return [code, button];
}

async function copy(node) {
  try {
    await navigator.clipboard.writeText(node.textContent);
    return true;
  } catch {
    // Without TLS beyond loopback a page may not write to the clipboard: select the text, so that the user can copy it.
    getSelection().selectAllChildren(node);
    return false;
  }
}
