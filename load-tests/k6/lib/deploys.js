// Deploys, canaries and rollbacks that are measured.

import { canaries, deployCount, deployed, deploys, releaseCount, released, rollbacks } from './metrics.js';
import { canary, deploy, rollBack } from './platform.js';

// Deploys a packed folder and waits until it serves; that it does not is counted.
export const deployOnce = (archive) => {
  const began = Date.now();
  try {
    const { version, function: fn } = deploy(archive);
    deploys.add(Date.now() - began, { fn });
    deployCount.add(1);
    deployed.add(true);
    console.info(`version ${version} is live`);
  } catch (error) {
    deployed.add(false);
    console.error(String(error));
  }
};

// Measures a change of what serves, and counts whether it came to its end.
const release = (trend, what, change) => {
  const began = Date.now();
  try {
    const { fn, told } = change();
    trend.add(Date.now() - began, { fn });
    releaseCount.add(1);
    released.add(true);
    console.info(`${what}: ${told}`);
  } catch (error) {
    released.add(false);
    console.error(String(error));
  }
};

// Deploys a packed folder as a canary and waits until its version has all invocations, then rolls it back.
export const canaryOnce = (archive) => {
  let name;
  release(canaries, 'canary', () => {
    const { version, fn } = canary(archive, '20,60', 2);
    name = fn;
    return { fn, told: `version ${version} has taken over` };
  });
  if (name === undefined) return;
  release(rollbacks, 'rollback', () => {
    const { to } = rollBack(name);
    return { fn: name, told: `version ${to} serves again` };
  });
};
