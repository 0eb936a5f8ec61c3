// The row of a list that the keyboard is at. Rows have the ids row-0, row-1, …

export class Rows {
  current = $state(-1);

  constructor(private readonly count: () => number) {}

  move(step: number): void {
    this.current = Math.min(Math.max(this.current + step, 0), this.count() - 1);
    document.getElementById(`row-${this.current}`)?.scrollIntoView({ block: "nearest" });
  }
}
