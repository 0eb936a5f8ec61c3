"""Download a document, split it, embed its parts, store the vectors exactly once, notify a reader. On one SQLite file.

python examples/ai_pipeline.py            # does it all: enqueues a document, runs a worker, shows the steps
Kill it at any moment, and start it again: no stored result is paid for twice, and no vector is stored twice.
"""

import asyncio
import sqlite3
from pathlib import Path

from rowlock import Context, Jobs, step

DATABASE = "jobs.db"
jobs = Jobs(f"sqlite:///{DATABASE}")
BATCH = 4  # parts that one call embeds


@step(title="Download", timeout=60, retry=[5, 30], max_retries=5)
async def download(source: str) -> str:
    """Return the text. This step has retries of its own: a site that is down costs the job no retry."""
    return await asyncio.to_thread(Path(source).read_text, "utf-8")


@step(title="Split")
async def split(text: str) -> list[str]:
    return [part.strip() for part in text.split("\n\n") if part.strip()]


@step(title="Embed", timeout=120, retry=[2, 10, 60], max_retries=10)
async def embed(parts: list[str]) -> list[list[float]]:
    """Return a vector for each part. Call your paid model here: its stored result is not paid for again."""
    return [[len(part) / 100, part.count(" ") / 20, part.count("e") / 20] for part in parts]


@step(title="Store the vectors", weight=2)
async def upsert(ctx: Context, source: str, parts: list[str], vectors: list[list[float]]) -> int:
    """Commit the vectors and the result of this step together, and only while this run holds its lease."""
    async with ctx.transaction() as conn:
        conn.execute("DELETE FROM vectors WHERE source = ?", (source,))
        rows = [(source, n, part, repr(vector)) for n, (part, vector) in enumerate(zip(parts, vectors, strict=True))]
        conn.executemany("INSERT INTO vectors VALUES (?, ?, ?, ?)", rows)
        conn.execute("INSERT INTO bills VALUES (?, ?)", (source, len(rows)))  # a second row would be a second bill
        ctx.complete(len(rows))
    return len(rows)


@step(title="Notify", retry=[1, 5, 30], max_retries=8, cancelable=False)
async def notify(source: str, count: int) -> None:
    """Notify the reader, at least once: it is outside the database. Send an id by which the reader knows a repeat."""
    print(f"{source}: {count} parts can be searched")


@jobs.task("document.index", version=1, steps=[download, split, embed, upsert, notify], key=["source"], timeout=900)
async def index_document(ctx: Context, source: str) -> int:
    text = await ctx.step(download, source)
    parts = await ctx.step(split, text)
    vectors: list[list[float]] = []
    for start in range(0, len(parts), BATCH):
        vectors += await ctx.step(embed, parts[start : start + BATCH])
    count = await ctx.step(upsert, source, parts, vectors)
    await ctx.step(notify, source, count)
    return count


def prepare() -> str:
    """Create the application's own tables, and a document."""
    connection = sqlite3.connect(DATABASE)
    with connection:
        connection.execute("CREATE TABLE IF NOT EXISTS vectors (source, n, part, vector, PRIMARY KEY (source, n))")
        connection.execute("CREATE TABLE IF NOT EXISTS bills (source, parts)")
    connection.close()
    document = Path("document.txt")
    document.write_text("\n\n".join(f"Part {n} of a document about everything." for n in range(1, 11)), "utf-8")
    return str(document)


async def main() -> None:
    source = prepare()
    async with jobs:
        made = await index_document.enqueue(source=source)
        await jobs.start(concurrency=4)
        print(await jobs.result(made, timeout=60), "vectors")
        for one in await jobs.steps(made.id):
            print(f"{one.title} #{one.n}: {one.state}")


if __name__ == "__main__":
    asyncio.run(main())
