// Server-sent events out of a response's body. EventSource would do it, but it sends no Authorization header.

/**
 * @param {ReadableStream<Uint8Array>} body
 * @returns {AsyncGenerator<{name: string, data: string}>} comments come as events without a name
 */
export async function* readEvents(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      const parts = (rest + value).split("\n\n");
      rest = parts.pop() ?? "";
      for (const part of parts) yield parse(part);
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}

function parse(part) {
  const event = { name: "", data: "" };
  for (const line of part.split("\n")) {
    if (line.startsWith("event: ")) event.name = line.slice(7);
    else if (line.startsWith("data: ")) event.data += line.slice(6);
  }
  return event;
}
