// What a scenario can be told from outside, with a default for each: `k6 run -e RATE=200 steady.js`.
// load-tests/README.md lists them.

const number = (name, fallback) => {
  const text = __ENV[name];
  if (text === undefined || text === '') return fallback;
  const value = Number(text);
  if (!Number.isFinite(value)) throw new Error(`${name}=${text} is not a number`);
  return value;
};

// A duration as k6 writes it ("90s", "2m", "1m30s"), in seconds.
export const seconds = (text) => {
  const parts = [...String(text).matchAll(/([0-9.]+)(ms|s|m|h)/g)];
  if (parts.length === 0) throw new Error(`"${text}" is not a duration: write for example 30s or 2m`);
  const unit = { ms: 0.001, s: 1, m: 60, h: 3600 };
  return parts.reduce((sum, [, n, u]) => sum + Number(n) * unit[u], 0);
};

export const url = (__ENV.FN_URL || 'http://127.0.0.1:8080').replace(/\/$/, '');
export const key = __ENV.FN_KEY || '';
// The functions' names begin with it, so that a load never meets somebody's own function.
export const prefix = __ENV.PREFIX || 'load-';

export const duration = seconds(__ENV.DURATION || '30s');
// Requests a second of the steady scenarios; a ramp goes to RATE_MAX.
export const rate = number('RATE', 50);
export const rateMax = number('RATE_MAX', 4 * rate);
// Requests at once in a spike, and seconds from one spike to the next.
export const spike = number('SPIKE', 20);
export const spikeEvery = number('SPIKE_EVERY', 10);
// How many functions share the load of `popularity`, and Zipf's exponent.
export const many = number('MANY', 12);
export const zipf = number('ZIPF', 1.1);
// The largest body of `bodies`, bytes, and the clients that send such bodies at once.
export const bodyMax = number('BODY_MAX', 4 << 20);
export const bodyClients = number('BODY_CLIENTS', 4);
// Seconds from the end of one deploy to the next.
export const deployEvery = number('DEPLOY_EVERY', 3);
// Seconds from the end of one migration to the next.
export const moveEvery = number('MOVE_EVERY', 0.5);

// Thresholds. Latencies are generous, as a load says nothing about a machine that others use: set them where it is
// yours.
export const failedMax = number('FAILED_MAX', 0.001);
export const p99Warm = number('P99_WARM_MS', 1000);
export const p99Cold = number('P99_COLD_MS', 5000);
