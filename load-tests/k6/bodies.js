// Long bodies, both ways: half of the clients send bodies of up to BODY_MAX bytes (sizes spread evenly over their
// logarithm) and have them sent back; the other half has answers streamed to it in pieces, with pauses between them.

import { bodyBytes, errors, failed, take, thresholds } from './lib/metrics.js';
import { send, stream } from './lib/platform.js';
import { bodyClients, bodyMax, duration } from './lib/settings.js';

export { handleSummary } from './lib/summary.js';

const half = Math.max(1, Math.floor(bodyClients / 2));

export const options = {
  scenarios: {
    echo: { executor: 'constant-vus', exec: 'echo', vus: half, duration: `${duration}s`, gracefulStop: '60s' },
    streams: { executor: 'constant-vus', exec: 'streams', vus: half, duration: `${duration}s`, gracefulStop: '60s' },
  },
  thresholds: thresholds({ 'fn_body_bytes{direction:in}': ['count>0'], 'fn_body_bytes{direction:out}': ['count>0'] }),
};

const SMALLEST = 1024;
const source = new Uint8Array(bodyMax).map((_, at) => (at * 2654435761) >>> 24);

const same = (sent, got) => {
  if (got === null || got.byteLength !== sent.length) return false;
  const bytes = new Uint8Array(got);
  // Every byte of the ends, and one of each page between them: comparing all of them would take the client longer than
  // the request.
  for (let at = 0; at < sent.length; at += at < 4096 || at > sent.length - 4096 ? 1 : 997) {
    if (bytes[at] !== sent[at]) return false;
  }
  return true;
};

export const echo = () => {
  const size = Math.round(SMALLEST * (bodyMax / SMALLEST) ** Math.random());
  const body = source.subarray(0, size);
  const answer = send('bodies', '/echo', body.slice().buffer);
  if (take(answer, 'bodies', ({ body: got }) => same(body, got))) {
    bodyBytes.add(size, { direction: 'in' });
    bodyBytes.add(size, { direction: 'out' });
  }
};

export const streams = () => {
  const [pieces, bytes] = [16, Math.round((bodyMax / 64) * Math.random()) + 1];
  const answer = stream('bodies', `/stream?pieces=${pieces}&bytes=${bytes}&pause_ms=5`);
  if (take(answer, 'bodies', ({ body: got }) => got !== null && got.byteLength === pieces * bytes)) {
    bodyBytes.add(pieces * bytes, { direction: 'out' });
    // A stream whose first byte comes with its last was not streamed.
    const streamed = answer.timings.receiving > 5 * (pieces - 1) * 0.5;
    failed.add(!streamed);
    if (!streamed) errors.add(1, { code: 'not streamed' });
  }
};
