// Steady: the same small function, RATE requests a second, whether or not the answers keep up.

import { thresholds } from './lib/metrics.js';
import { invoke } from './lib/platform.js';
import { duration, rate } from './lib/settings.js';

export { handleSummary } from './lib/summary.js';

export const options = {
  scenarios: {
    steady: { executor: 'constant-arrival-rate', rate, duration: `${duration}s`, preAllocatedVUs: 20, maxVUs: 200 },
  },
  thresholds: thresholds(),
};

export default () => invoke('hello', '/', (answer) => answer.body.startsWith('Hello'));
