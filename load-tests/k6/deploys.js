// Deploys under load: RATE requests a second to a function of which a new version goes live again and again, at once or
// as a canary that is rolled back then. Each version answers with its own number; none of the requests may fail.
//
// ARCHIVE names the function's packed folder (.tar.gz); `make load` makes it. Without it nothing is deployed.

import { sleep } from 'k6';

import { canaryOnce, deployOnce } from './lib/deploys.js';
import { thresholds } from './lib/metrics.js';
import { invoke } from './lib/platform.js';
import { deployEvery, duration, rate } from './lib/settings.js';

export { handleSummary } from './lib/summary.js';

// Seconds that the load goes on after the last round may have begun: without requests no canary comes to its end.
const last = deployEvery + 45;
const archive = __ENV.ARCHIVE ? open(__ENV.ARCHIVE, 'b') : null;

export const options = {
  scenarios: {
    load: {
      executor: 'constant-arrival-rate', rate, duration: `${duration + last}s`, preAllocatedVUs: 40, maxVUs: 200,
    },
    deploys: { executor: 'constant-vus', exec: 'deployer', vus: 1, duration: `${duration}s`, gracefulStop: '150s' },
  },
  thresholds: thresholds(
    archive === null
      ? {}
      : {
          fn_deployed: ['rate==1'],
          fn_deploy_count: ['count>0'],
          fn_released: ['rate==1'],
          fn_release_count: ['count>0'],
        },
  ),
};

export default () => invoke('deployed', '/', (answer) => /^version [0-9]+$/.test(answer.body));

export const deployer = () => {
  sleep(deployEvery);
  if (archive === null) return;
  deployOnce(archive);
  canaryOnce(archive);
};
