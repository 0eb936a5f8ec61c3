// The address: #/screen/argument?parameters. It holds everything that a screen shows, so every view is a link.

export type Parameters = Record<string, string | readonly string[] | null | undefined>;

class Place {
  screen = $state("");
  argument = $state("");
  query = $state.raw(new URLSearchParams());

  constructor() {
    this.read();
    addEventListener("hashchange", () => this.read());
  }

  private read(): void {
    const [path = "", query = ""] = location.hash.replace(/^#\/?/, "").split(/\?(.*)/s);
    const [screen = "", ...rest] = path.split("/");
    this.screen = screen || "overview";
    this.argument = decode(rest.join("/"));
    this.query = new URLSearchParams(query);
  }

  get = (name: string): string => this.query.get(name) ?? "";
  all = (name: string): string[] => this.query.getAll(name);

  /** Changes some parameters and keeps the others; null takes one away. */
  set(changes: Parameters, replace = false): void {
    const query = new URLSearchParams(this.query);
    for (const [name, value] of Object.entries(changes)) {
      query.delete(name);
      for (const one of Array.isArray(value) ? value : [value]) if (one) query.append(name, one as string);
    }
    go(link(this.screen, this.argument, query), replace);
  }
}

function decode(text: string): string {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

export function link(screen: string, argument = "", query: URLSearchParams | Parameters = {}): string {
  let given = query;
  if (!(given instanceof URLSearchParams)) {
    const made = new URLSearchParams();
    for (const [name, value] of Object.entries(given)) {
      for (const one of Array.isArray(value) ? value : [value]) if (one) made.append(name, one as string);
    }
    given = made;
  }
  return `#/${screen}${argument ? `/${encodeURIComponent(argument)}` : ""}${given.size ? `?${given}` : ""}`;
}

export function go(to: string, replace = false): void {
  if (replace) {
    history.replaceState(null, "", to);
    dispatchEvent(new HashChangeEvent("hashchange"));
  } else {
    location.hash = to;
  }
}

export const place = new Place();
