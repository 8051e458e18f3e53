// Spike from zero: SPIKE requests at the same instant to a function without any instance (64 MB of touched memory),
// every SPIKE_EVERY seconds. In the middle between two spikes all instances are removed, so that each spike starts from
// zero.

import exec from 'k6/execution';
import { sleep } from 'k6';

import { thresholds } from './lib/metrics.js';
import { instances, invoke, toZero } from './lib/platform.js';
import { duration, spike, spikeEvery } from './lib/settings.js';

export { handleSummary } from './lib/summary.js';

const spikes = Math.max(1, Math.floor(duration / spikeEvery));

export const options = {
  scenarios: {
    clients: {
      executor: 'per-vu-iterations', exec: 'clients', vus: spike, iterations: spikes,
      maxDuration: `${duration + 60}s`,
    },
    remover: {
      executor: 'per-vu-iterations', exec: 'remover', vus: 1, iterations: spikes - 1 || 1,
      maxDuration: `${duration + 60}s`,
    },
  },
  thresholds: thresholds(),
};

// When the first spike is, milliseconds since 1970; the clients need a moment to be there.
export const setup = () => {
  toZero('touch');
  if (instances('touch').length > 0) throw new Error('the function does not go to zero');
  return Date.now() + 2000;
};

const until = (at) => sleep(Math.max(0, at - Date.now()) / 1000);

export const clients = (first) => {
  until(first + exec.vu.iterationInScenario * spikeEvery * 1000);
  invoke('touch', '/', (answer) => answer.body.startsWith('{"page"'));
};

export const remover = (first) => {
  if (spikes === 1) return;
  until(first + (exec.vu.iterationInScenario + 0.5) * spikeEvery * 1000);
  toZero('touch');
};
