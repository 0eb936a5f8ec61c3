// Sum up an order. The payload is the argument, the returned value is the job's result.
// rowlock.log(text), rowlock.progress(percent, message) and rowlock.fail(reason) are the host's.
function handler({ items, discount = 0 }) {
  if (!Array.isArray(items)) rowlock.fail("items: must be a list");
  let total = 0;
  items.forEach(({ name, price, count = 1 }, n) => {
    if (typeof price !== "number") throw new TypeError(`${name}: its price is no number`);
    total += price * count;
    rowlock.progress((100 * (n + 1)) / items.length, name);
  });
  rowlock.log(`${items.length} items`);
  return { total: Math.round(total * (1 - discount)), items: items.map(({ name }) => name).sort() };
}
