// What every scenario measures, and how an answer is turned into it. The report is made of these alone.
//
// fn_latency    ms, from sending the request to the last byte of the answer   {start, fn}
// fn_first_byte ms, to the first byte of the answer                            {start, fn}
// fn_phase      ms, one phase of Server-Timing                                 {start, phase}
// fn_failed     share of the requests that were not answered as they should be {fn}
// fn_errors     those, counted                                                 {code}
// fn_body_bytes bytes of bodies that went in or out                            {direction}
// fn_deploy     ms, from a deploy's upload until its version is live
// fn_deployed   share of the deploys that went live; fn_deploy_count is how many did
// fn_canary     ms, from a canary's upload until its version has all invocations; fn_rollback ms, of a rollback
// fn_released   share of the canaries and rollbacks that did so; fn_release_count is how many did
// fn_move       ms, from asking for a migration until the instance serves elsewhere; fn_move_count is how many did

import { Counter, Rate, Trend } from 'k6/metrics';

import { failedMax, p99Cold, p99Warm } from './settings.js';

export const latency = new Trend('fn_latency', true);
export const firstByte = new Trend('fn_first_byte', true);
export const phases = new Trend('fn_phase', true);
export const failed = new Rate('fn_failed');
export const errors = new Counter('fn_errors');
export const bodyBytes = new Counter('fn_body_bytes');
export const deploys = new Trend('fn_deploy', true);
export const deployed = new Rate('fn_deployed');
export const deployCount = new Counter('fn_deploy_count');
export const canaries = new Trend('fn_canary', true);
export const rollbacks = new Trend('fn_rollback', true);
export const released = new Rate('fn_released');
export const releaseCount = new Counter('fn_release_count');
export const moves = new Trend('fn_move', true);
export const moveCount = new Counter('fn_move_count');

// Thresholds that every scenario has; a scenario may add to them.
export const thresholds = (more = {}) => ({
  fn_failed: [`rate<=${failedMax}`],
  'fn_latency{start:warm}': [`p(99)<${p99Warm}`],
  'fn_latency{start:restored}': [`p(99)<${p99Cold}`],
  ...more,
});

// `route;dur=0.25, criu;dur=7` as [['route', 0.25], ['criu', 7]].
const timing = (header) =>
  (header || '')
    .split(',')
    .map((metric) => {
      const [name, ...parts] = metric.split(';').map((part) => part.trim());
      const dur = parts.find((part) => part.startsWith('dur='));
      return [name, dur === undefined ? NaN : Number(dur.slice(4))];
    })
    .filter(([name, ms]) => name && Number.isFinite(ms));

// Why an answer is none: the platform's own code where it gave one, else the status, else what k6 says of the
// connection.
const reason = (response) => {
  if (response.status === 0) return `client: ${response.error || response.error_code}`;
  try {
    const code = response.json('code');
    if (typeof code === 'string') return code;
  } catch (_notJson) {
    // The status says enough.
  }
  return `status ${response.status}`;
};

// Takes an answer into the metrics; `right` looks at the body of one with status 200. Answers whether all was well.
export const take = (response, fn, right = () => true) => {
  const well = response.status === 200;
  const whole = well && right(response);
  failed.add(!whole, { fn });
  if (!whole) {
    errors.add(1, { code: well ? 'wrong body' : reason(response), fn });
    return false;
  }
  const start = response.headers['X-Fn-Start'] || 'unknown';
  latency.add(response.timings.duration, { start, fn });
  firstByte.add(response.timings.waiting, { start, fn });
  for (const [phase, ms] of timing(response.headers['Server-Timing'])) phases.add(ms, { start, phase });
  return true;
};
