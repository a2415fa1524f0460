// Server-sent events of a response's body; EventSource cannot POST.

/** Yield the data of each event. */
export async function* eventsOf(body) {
  let rest = "";
  for await (const text of textOf(body)) {
    const blocks = (rest + text).replaceAll("\r\n", "\n").split("\n\n");
    rest = blocks.pop();
    yield* blocks.map(dataOf).filter((data) => data !== "");
  }
}

/** Yield the text of a body as it comes; a character may be split between two pieces. */
async function* textOf(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      yield value;
    }
  } finally {
    // Left early: the server learns of it at once, and frees the row.
    reader.cancel().catch(() => {});
  }
}

/** Return an event's data; lines that begin with a colon are comments. */
function dataOf(block) {
  const lines = block.split("\n").filter((line) => line.startsWith("data:"));
  return lines.map((line) => line.slice(5).replace(/^ /, "")).join("\n");
}
