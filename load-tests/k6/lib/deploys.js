// A deploy that is measured.

import { deployCount, deployed, deploys } from './metrics.js';
import { deploy } from './platform.js';

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
