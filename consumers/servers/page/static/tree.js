// Namespaces as a tree: which rows a list of tables has, with what is folded away.

/** Above so many tables, namespaces are closed at first. */
const OPEN_MAX = 200;
const KEPT = "folded";

export class Tree {
  constructor() {
    this.turned = new Set(JSON.parse(sessionStorage.getItem(KEPT) ?? "[]"));
  }

  /** Whether a namespace is open. */
  isOpen(path, count) {
    return (count <= OPEN_MAX) !== this.turned.has(path);
  }

  turn(path) {
    if (!this.turned.delete(path)) this.turned.add(path);
    sessionStorage.setItem(KEPT, JSON.stringify([...this.turned]));
  }

  /**
   * Rows of tables: {space, path, word, depth, sums, open} or {one, word, depth}. Unless these are
   * all tables, namespaces are closed at first.
   */
  rows(tables, isWhole) {
    const count = isWhole ? tables.length : Infinity;
    const spaces = new Map();
    const root = { children: [], depth: -1 };
    for (const one of tables) {
      const parts = one.table_name.split("$");
      let above = root;
      for (let depth = 0; depth < parts.length - 1; depth += 1) {
        const path = parts.slice(0, depth + 1).join("$");
        let space = spaces.get(path);
        if (!space) {
          space = { space: true, path, word: parts[depth], depth, children: [], tables: 0, commits: 0, changed_at: 0 };
          spaces.set(path, space);
          above.children.push(space);
        }
        space.tables += one.ended_by ? 0 : 1;
        space.commits += one.commits;
        space.changed_at = Math.max(space.changed_at, one.changed_at ?? 0);
        above = space;
      }
      above.children.push({ one, word: parts.at(-1), depth: parts.length - 1 });
    }
    const found = [];
    const walk = (children) => {
      for (const child of children) {
        found.push(child);
        if (!child.space) continue;
        child.open = this.isOpen(child.path, count);
        if (child.open) walk(child.children);
      }
    };
    walk(root.children);
    return found;
  }
}
