// UUIDv7: time first, so that ids sort by creation. They grow strictly within one process, as those of the Python client do.

const HEX = Array.from({ length: 256 }, (_, byte) => byte.toString(16).padStart(2, "0"));
let clock = 0; // milliseconds
let count = 0; // of the ids in this millisecond

export function newId(): string {
  const now = Date.now();
  if (now > clock) {
    clock = now;
    count = 0;
  } else if (++count > 0xfff) {
    clock += 1; // a burst borrows from the next millisecond
    count = 0;
  }
  const time = clock.toString(16).padStart(12, "0");
  const [a, b, c, d, e, f, g, h] = crypto.getRandomValues(new Uint8Array(8)) as unknown as [number, number, number, number, number, number, number, number];
  const noise = `${HEX[(a & 0x3f) | 0x80]}${HEX[b]}-${HEX[c]}${HEX[d]}${HEX[e]}${HEX[f]}${HEX[g]}${HEX[h]}`;
  return `${time.slice(0, 8)}-${time.slice(8)}-7${count.toString(16).padStart(3, "0")}-${noise}`;
}
