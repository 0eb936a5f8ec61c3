const HEX = Array.from({ length: 256 }, (_, byte) => byte.toString(16).padStart(2, "0"));
let clock = 0;
let count = 0;
export function newId() {
    const now = Date.now();
    if (now > clock) {
        clock = now;
        count = 0;
    }
    else if (++count > 0xfff) {
        clock += 1;
        count = 0;
    }
    const time = clock.toString(16).padStart(12, "0");
    const [a, b, c, d, e, f, g, h] = crypto.getRandomValues(new Uint8Array(8));
    const noise = `${HEX[(a & 0x3f) | 0x80]}${HEX[b]}-${HEX[c]}${HEX[d]}${HEX[e]}${HEX[f]}${HEX[g]}${HEX[h]}`;
    return `${time.slice(0, 8)}-${time.slice(8)}-7${count.toString(16).padStart(3, "0")}-${noise}`;
}
