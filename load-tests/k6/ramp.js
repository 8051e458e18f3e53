// Ramp: from a tenth of RATE up to RATE_MAX and down again. Every instance takes one request at a time, so their number
// must follow.

import { thresholds } from './lib/metrics.js';
import { invoke } from './lib/platform.js';
import { duration, rate, rateMax } from './lib/settings.js';

export { handleSummary } from './lib/summary.js';

export const options = {
  scenarios: {
    ramp: {
      executor: 'ramping-arrival-rate',
      startRate: Math.max(1, Math.round(rate / 10)),
      stages: [
        { target: rateMax, duration: `${0.5 * duration}s` },
        { target: rateMax, duration: `${0.2 * duration}s` },
        { target: Math.max(1, Math.round(rate / 10)), duration: `${0.3 * duration}s` },
      ],
      preAllocatedVUs: 50,
      maxVUs: 300,
    },
  },
  thresholds: thresholds(),
};

export default () => invoke('hello', '/', (answer) => answer.body.startsWith('Hello'));
