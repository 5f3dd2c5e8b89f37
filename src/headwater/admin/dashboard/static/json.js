// JSON whose objects and arrays fold: a node is [name, text or null, kind, nodes in it]. All of it is text.
import { h } from "vue";
const draw = (node, depth) => {
  const [name, text, kind, inside] = node;
  const label = name === "" ? [] : [h("span", { class: "hw-json-name" }, name), ": "];
  if (text !== null) return h("div", { class: "hw-json-row" }, [...label, h("span", { "data-kind": kind }, text)]);
  const [open, close] = kind === "object" ? ["{", "}"] : ["[", "]"];
  if (!inside.length) return h("div", { class: "hw-json-row" }, [...label, open + close]);
  const count = `${inside.length} ${kind === "object" ? "field" : "element"}${inside.length === 1 ? "" : "s"}`;
  return h("details", { class: "hw-json", open: depth > 0 }, [
    h("summary", [...label, open, h("span", { class: "hw-json-count" }, ` ${count} `), close]),
    ...inside.map((one) => draw(one, depth - 1)),
  ]);
};
export default {
  props: { root: Array, depth: Number },
  render() {
    return h("div", { tabindex: 0 }, [draw(this.root, this.depth)]);
  },
};
