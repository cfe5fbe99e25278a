// What can become of a transaction, and how each is told apart: by word, by shape, by colour.

/** Order is the order of drawing: what is rare comes last and lies on top. */
export const KINDS = [
  { name: "committed", word: "committed", mark: "dot", colour: "--committed" },
  { name: "repeated", word: "repeated", mark: "ring", colour: "--repeated" },
  { name: "rebased", word: "rebased", mark: "tail", colour: "--rebased" },
  { name: "superseded", word: "superseded", mark: "ring", colour: "--repeated" },
  { name: "retryable", word: "retryable", mark: "cross", colour: "--retryable" },
  { name: "incompatible", word: "incompatible", mark: "cross", colour: "--incompatible" },
  { name: "rejected", word: "rejected", mark: "bar", colour: "--rejected" },
];
export const CODE = Object.fromEntries(KINDS.map((kind, code) => [kind.name, code]));

/** Groups that the overview and the legend show. */
export const GROUPS = [
  { name: "committed", codes: [CODE.committed, CODE.repeated], colour: "--committed" },
  { name: "rebased", codes: [CODE.rebased], colour: "--rebased" },
  { name: "refused", codes: [CODE.retryable, CODE.incompatible, CODE.rejected, CODE.superseded], colour: "--retryable" },
];
export const GROUP_OF = KINDS.map((_, code) => GROUPS.findIndex((group) => group.codes.includes(code)));

/** The code of a status; a commit that found newer versions and went on top of them is "rebased". */
export const codeOf = (status, rebasedOver) =>
  status === "committed" && rebasedOver > 0 ? CODE.rebased : (CODE[status] ?? CODE.rejected);

/** Draw a mark around a point of a canvas. */
export function draw(context, kind, x, y, size) {
  const half = size / 2;
  context.beginPath();
  if (kind.mark === "cross") {
    context.moveTo(x - half, y - half);
    context.lineTo(x + half, y + half);
    context.moveTo(x + half, y - half);
    context.lineTo(x - half, y + half);
    context.stroke();
  } else if (kind.mark === "bar") {
    context.moveTo(x - half, y);
    context.lineTo(x + half, y);
    context.stroke();
  } else if (kind.mark === "ring") {
    context.arc(x, y, half - 0.5, 0, 7);
    context.stroke();
  } else if (kind.mark === "tail") {
    context.moveTo(x, y - half - 0.5);
    context.lineTo(x + half + 0.5, y);
    context.lineTo(x, y + half + 0.5);
    context.lineTo(x - half - 0.5, y);
    context.fill();
  } else {
    context.arc(x, y, half, 0, 7);
    context.fill();
  }
}
