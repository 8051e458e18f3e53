// Deploys and migrations under load: RATE requests a second to a function whose instances move between two workers
// while new versions of it go live. None of the requests may fail.
//
// It takes a platform of two workers or more. ARCHIVE is as in deploys.js; without it nothing is deployed.

import { sleep } from 'k6';

import { deployOnce } from './lib/deploys.js';
import { moveCount, moves, thresholds } from './lib/metrics.js';
import { instances, invoke, migrate } from './lib/platform.js';
import { deployEvery, duration, moveEvery, rate } from './lib/settings.js';

export { handleSummary } from './lib/summary.js';

const archive = __ENV.ARCHIVE ? open(__ENV.ARCHIVE, 'b') : null;
const during = { executor: 'constant-vus', vus: 1, duration: `${duration}s`, gracefulStop: '150s' };

export const options = {
  scenarios: {
    load: { executor: 'constant-arrival-rate', rate, duration: `${duration}s`, preAllocatedVUs: 40, maxVUs: 200 },
    moves: { ...during, exec: 'mover' },
    ...(archive === null ? {} : { deploys: { ...during, exec: 'deployer' } }),
  },
  thresholds: thresholds({
    fn_move_count: ['count>0'],
    ...(archive === null ? {} : { fn_deployed: ['rate==1'], fn_deploy_count: ['count>0'] }),
  }),
};

export default () => invoke('deployed', '/', (answer) => /^version [0-9]+$/.test(answer.body));

// An instance that a new version has replaced meanwhile, or that is busy being started, does not move, and that is
// right: only moves count.
export const mover = () => {
  sleep(moveEvery);
  const all = instances('deployed').filter((instance) => instance.state === 'ready');
  if (all.length === 0) return;
  const { id } = all[Math.floor(Math.random() * all.length)];
  const began = Date.now();
  const moved = migrate(id);
  if (moved.status === 200) {
    moves.add(Date.now() - began);
    moveCount.add(1);
  } else {
    console.warn(`${id} does not move: ${moved.status} ${moved.body}`);
  }
};

export const deployer = () => {
  sleep(deployEvery);
  deployOnce(archive);
};
