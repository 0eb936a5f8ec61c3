// Where the jobs of a flow are drawn. Layers by the longest path, order within a layer by the mean place of the neighbours, edges as curves.
// Many jobs that are alike become one box. Nothing here depends on a status, so nothing moves while the flow runs.

export interface Point {
  id: string;
  kind: string; // only jobs of the same kind may become one box
  size: number; // its height
}
export interface Link {
  from: string;
  to: string;
  isCall?: boolean;
}
export interface Box {
  id: string; // of its first job
  members: string[];
  layer: number;
  x: number;
  y: number;
  height: number;
}
export interface Curve {
  from: string; // ids of boxes
  to: string;
  isCall: boolean;
  path: string;
}
export interface Drawing {
  boxes: Box[];
  curves: Curve[];
  width: number;
  height: number;
  isDown: boolean; // layers are rows
}

export const WIDTH = 188; // of a box
const TALL = 64; // the height of a box for many jobs
const MOST = 200; // boxes, before those that are alike become one
const [GAP, BETWEEN, MARGIN, BEND] = [14, 48, 16, 12]; // between boxes of a layer, between layers, around all, and the room for an edge that passes a layer
const MOST_BENDS = 3000; // beyond, long edges are drawn straight across
const SWEEPS = 12; // of small graphs
const LARGE = 2000; // spots, beyond which fewer sweeps must do

/** A box, or a place where an edge passes a layer. */
interface Spot {
  size: number;
  at: number; // its centre, across the layers
  begin: number; // along the layers
  end: number;
  before: Spot[];
  after: Spot[];
  box: Box | null;
}

const spotWith = (size: number, box: Box | null = null): Spot => ({ size, at: 0, begin: 0, end: 0, before: [], after: [], box });

export function draw(points: readonly Point[], links: readonly Link[], room: number): Drawing {
  const index = new Map(points.map(({ id }, n) => [id, n]));
  const [before, after] = [points.map((): number[] => []), points.map((): number[] => [])];
  const calls = new Set<number>(); // jobs that another one has started
  for (const { from, to, isCall } of links) {
    const [a, b] = [index.get(from), index.get(to)];
    if (a === undefined || b === undefined || a === b) continue;
    after[a]!.push(b);
    before[b]!.push(a);
    if (isCall) calls.add(b);
  }
  const layers = layered(before, after);
  const group = grouped(points, layers, before, after);

  const boxes: Box[] = [];
  const spots: Spot[] = [];
  const rows: Spot[][] = [];
  const ofGroup = new Map<number | string, Spot>();
  const spotOf = points.map(({ id, size }, n): Spot => {
    let spot = ofGroup.get(group[n]!);
    if (!spot) {
      const box: Box = { id, members: [], layer: layers[n]!, x: 0, y: 0, height: size };
      spot = spotWith(size, box);
      ofGroup.set(group[n]!, spot);
      boxes.push(box);
      spots.push(spot);
      (rows[box.layer] ??= []).push(spot);
    }
    spot.box!.members.push(id);
    if (spot.box!.members.length === 2) spot.size = spot.box!.height = TALL;
    return spot;
  });
  for (let n = 0; n < rows.length; n++) rows[n] ??= [];

  // Edges between boxes, each once.
  const ends: [Spot, Spot, boolean][] = [];
  const known = new Map<Spot, Set<Spot>>();
  after.forEach((those, n) => those.forEach((m) => {
    const [from, to] = [spotOf[n]!, spotOf[m]!];
    const seen = known.get(from) ?? new Set();
    if (from.box!.layer >= to.box!.layer || seen.has(to)) return;
    known.set(from, seen.add(to));
    ends.push([from, to, calls.has(m)]);
  }));
  const bends = ends.reduce((sum, [from, to]) => sum + to.box!.layer - from.box!.layer - 1, 0) <= MOST_BENDS;
  const paths = ends.map(([from, to]): Spot[] => {
    const path = [from];
    for (let layer = from.box!.layer + 1; bends && layer < to.box!.layer; layer++) {
      const bend = spotWith(BEND);
      rows[layer]!.push(bend);
      path.push(bend);
    }
    path.push(to);
    for (let n = 1; n < path.length; n++) {
      path[n - 1]!.after.push(path[n]!);
      path[n]!.before.push(path[n - 1]!);
    }
    return path;
  });

  // Layers are columns if there is room for them, or if rows would be wider still.
  const across = rows.length * (WIDTH + BETWEEN) - BETWEEN + 2 * MARGIN;
  const widest = Math.max(0, ...rows.map((row) => row.reduce((sum, { box }) => sum + (box ? WIDTH : BEND) + GAP, 0))) + 2 * MARGIN;
  const isDown = across > room && widest < across;
  if (isDown) for (const spot of spots) spot.size = WIDTH;
  const sweeps = rows.reduce((sum, row) => sum + row.length, 0) > LARGE ? 4 : SWEEPS;
  ordered(rows, sweeps);
  placed(rows, sweeps);

  let lowest = Infinity;
  for (const row of rows) for (const { at, size } of row) lowest = Math.min(lowest, at - size / 2 - MARGIN);
  let [furthest, along] = [0, MARGIN];
  for (const row of rows) {
    const thick = isDown ? Math.max(0, ...row.map(({ box }) => box?.height ?? 0)) : WIDTH;
    for (const spot of row) {
      const { at, size, box } = spot;
      spot.at = Math.round(at - lowest);
      [spot.begin, spot.end] = [along, along + (isDown && box ? box.height : thick)];
      furthest = Math.max(furthest, spot.at + size / 2 + MARGIN);
      if (!box) continue;
      const start = spot.at - Math.round(size / 2);
      [box.x, box.y] = isDown ? [start, along] : [along, start];
    }
    along += thick + BETWEEN;
  }
  const length = along - BETWEEN + MARGIN;
  const curves = ends.map(([from, to, isCall], n): Curve => ({ from: from.box!.id, to: to.box!.id, isCall, path: curve(paths[n]!, isDown) }));
  return { boxes, curves, width: isDown ? furthest : length, height: isDown ? length : furthest, isDown };
}

function curve([first, ...rest]: Spot[], isDown: boolean): string {
  const point = (along: number, across: number): string => (isDown ? `${across} ${along}` : `${along} ${across}`);
  let last = first!;
  let text = `M${point(last.end, last.at)}`;
  for (const spot of rest) {
    const middle = (last.end + spot.begin) / 2;
    text += `C${point(middle, last.at)} ${point(middle, spot.at)} ${point(spot.begin, spot.at)}`;
    if (!spot.box) text += `L${point(spot.end, spot.at)}`;
    last = spot;
  }
  return text;
}

/** The layer of each job: one behind the last of those before it. A job without any stands right before the first that waits for it. */
function layered(before: number[][], after: number[][]): number[] {
  const layers = before.map(() => 0);
  const left = before.map((those) => those.length);
  const ready = left.flatMap((count, n) => (count ? [] : [n]));
  for (let n = ready.pop(); n !== undefined; n = ready.pop()) {
    for (const m of after[n]!) {
      layers[m] = Math.max(layers[m]!, layers[n]! + 1);
      if (!--left[m]!) ready.push(m);
    }
  }
  before.forEach((those, n) => {
    if (!those.length && after[n]!.length) layers[n] = Math.max(0, Math.min(...after[n]!.map((m) => layers[m]!)) - 1);
  });
  return layers;
}

/** The group of each job. Beyond MOST, jobs of the same kind that have the same parents and the same children are one group. If that is not
 * enough, so are those whose parents and children are of the same groups: a thousand chains become one. */
function grouped(points: readonly Point[], layers: number[], before: number[][], after: number[][]): (number | string)[] {
  let group: (number | string)[] = points.map((_, n) => n);
  if (points.length <= MOST) return group;
  const refined = (of: (number | string)[], own: (n: number) => unknown): number[] => {
    const known = new Map<string, number>();
    return points.map(({ kind }, n) => {
      const near = [before, after].map((those) => [...new Set(those[n]!.map((m) => of[m]!))].sort().join());
      const key = JSON.stringify([kind, own(n), near]);
      if (!known.has(key)) known.set(key, known.size);
      return known.get(key)!;
    });
  };
  const count = (of: unknown[]): number => new Set(of).size;
  group = refined(group, (n) => layers[n]);
  if (count(group) <= MOST) return group;
  let coarse: (number | string)[] = points.map(({ kind }, n) => `${layers[n]} ${kind}`);
  for (let round = 0; round < SWEEPS; round++) {
    const next = refined(coarse, (n) => coarse[n]);
    const isStable = count(next) === count(coarse);
    coarse = next;
    if (isStable) break;
  }
  return coarse;
}

const mean = (spots: Spot[]): number => spots.reduce((sum, { at }) => sum + at, 0) / spots.length;

/** Sort each layer by the mean place of the neighbours, there and back, and keep the order with the fewest crossings. */
function ordered(rows: Spot[][], sweeps: number): void {
  const number = (row: Spot[]): void => row.forEach((spot, n) => (spot.at = n));
  rows.forEach(number);
  let [best, fewest] = [rows.map((row) => [...row]), crossings(rows)];
  for (let sweep = 0; sweep < sweeps && fewest; sweep++) {
    const isForth = sweep % 2 === 0;
    for (const row of isForth ? rows : [...rows].reverse()) {
      const wish = new Map(row.map((spot) => {
        const near = isForth ? spot.before : spot.after;
        return [spot, near.length ? mean(near) : spot.at];
      }));
      row.sort((a, b) => wish.get(a)! - wish.get(b)!);
      number(row);
    }
    const now = crossings(rows);
    if (now < fewest) [best, fewest] = [rows.map((row) => [...row]), now];
  }
  best.forEach((row, n) => {
    rows[n] = row;
    number(row);
  });
}

/** How many edges cross, by a tree of sums over the places of the next layer. */
function crossings(rows: Spot[][]): number {
  let crossed = 0;
  rows.forEach((row, n) => {
    const tree = new Int32Array((rows[n + 1]?.length ?? 0) + 2);
    let seen = 0;
    for (const spot of row) {
      const ends = spot.after.map(({ at }) => at + 1).sort((a, b) => a - b);
      for (const end of ends) {
        let passed = 0;
        for (let at = end; at > 0; at -= at & -at) passed += tree[at] ?? 0;
        crossed += seen - passed;
      }
      for (const end of ends) for (let at = end; at < tree.length; at += at & -at) tree[at]!++;
      seen += ends.length;
    }
  });
  return crossed;
}

/** Move each spot to the mean of its neighbours, as far as the others of its layer let it: the least squares that keep order and distance. */
function placed(rows: Spot[][], sweeps: number): void {
  for (const row of rows) {
    let at = 0;
    for (const spot of row) {
      spot.at = at + spot.size / 2;
      at += spot.size + GAP;
    }
    for (const spot of row) spot.at -= at / 2;
  }
  for (let sweep = 0; sweep < sweeps; sweep++) {
    for (const row of sweep % 2 ? [...rows].reverse() : rows) {
      if (!row.some(({ before, after }) => before.length + after.length)) continue;
      const offsets = [0]; // how far each is behind the first, if all stand close
      const blocks: { sum: number; weight: number; count: number }[] = []; // of spots that stand close
      row.forEach((spot, n) => {
        if (n) offsets[n] = offsets[n - 1]! + (row[n - 1]!.size + spot.size) / 2 + GAP;
        const [first, other] = sweep % 2 ? [spot.after, spot.before] : [spot.before, spot.after];
        const near = sweep >= sweeps - 2 ? [...first, ...other] : first.length ? first : other;
        // Long edges are straight. A box without edges stands close to the one before it, or after it if it is the first.
        const weight = !near.length ? 1e-9 : spot.box ? 1 : 4;
        const wish = near.length ? mean(near) : n ? -1e6 : 1e6;
        const block = { sum: (wish - offsets[n]!) * weight, weight, count: 1 };
        for (let last = blocks.at(-1); last && last.sum / last.weight >= block.sum / block.weight; last = blocks.at(-1)) {
          block.sum += last.sum;
          block.weight += last.weight;
          block.count += last.count;
          blocks.pop();
        }
        blocks.push(block);
      });
      let n = 0;
      for (const { sum, weight, count } of blocks) {
        for (const end = n + count; n < end; n++) row[n]!.at = sum / weight + offsets[n]!;
      }
    }
  }
}
