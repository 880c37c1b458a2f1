// Elements are made by these functions only. Texts become text nodes and never HTML: peers choose many of them.

const SVG = "http://www.w3.org/2000/svg";

/** Return a new element. Attributes that are null, undefined or false are left out; functions are listeners. */
export function h(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

/** Return a new element of SVG. */
export function svg(tag, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (typeof value === "function") element.addEventListener(name, value);
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  append(element, children);
  return element;
}

/** Append nodes and texts; empty ones are left out. */
export function append(element, children) {
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined || child === false || child === "") continue;
    element.append(child instanceof Node ? child : String(child));
  }
}

/** Replace all children of an element. */
export function replace(element, ...children) {
  element.replaceChildren();
  append(element, children);
}

/** Set the text of an element, without work if it is the same. */
export function say(element, text) {
  if (element.textContent !== text) element.textContent = text;
}
