// Many functions, few of them popular: RATE requests a second over MANY functions by Zipf's law. Their idle time is
// short, so the tail goes to zero between its requests and is restored each time, while the head stays warm.

import { thresholds } from './lib/metrics.js';
import { invoke } from './lib/platform.js';
import { zipfian } from './lib/popularity.js';
import { duration, many, rate, zipf } from './lib/settings.js';

export { handleSummary } from './lib/summary.js';

const choose = zipfian(many, zipf);

export const options = {
  scenarios: {
    popularity: { executor: 'constant-arrival-rate', rate, duration: `${duration}s`, preAllocatedVUs: 40, maxVUs: 200 },
  },
  thresholds: thresholds(),
};

export default () => invoke(`many-${choose() + 1}`, '/', (answer) => answer.body.startsWith('Hello'));
