// The platform as a client sees it: invocations, and the few calls of the admin API that a scenario needs.

import http from 'k6/http';
import { sleep } from 'k6';

import { take } from './metrics.js';
import { key, prefix, url } from './settings.js';

// k6's own metrics of a request carry its URL; a name keeps those of one function together.
const tagged = (name, more = {}) => ({ tags: { name }, timeout: '60s', ...more });
const admin = (name) => tagged(name, { headers: { authorization: `Bearer ${key}` } });

// Calls a function by GET and takes the answer into the metrics.
export const invoke = (fn, path = '/', right = undefined) =>
  take(http.get(`${url}/function/${prefix}${fn}${path}`, tagged(fn)), fn, right);

// Sends a body and has the whole answer as bytes.
export const send = (fn, path, body) =>
  http.post(`${url}/function/${prefix}${fn}${path}`, body, tagged(fn, { responseType: 'binary' }));

// Streams an answer: k6 reads it whole, and its `waiting` is the time to the first byte.
export const stream = (fn, path) =>
  http.get(`${url}/function/${prefix}${fn}${path}`, tagged(fn, { responseType: 'binary' }));

export const instances = (fn) => {
  const all = http.get(`${url}/v1/instances`, admin('instances'));
  if (all.status !== 200) {
    throw new Error(`the instances cannot be listed: ${all.status} ${all.body}: is FN_KEY the admin key?`);
  }
  return all.json().filter((instance) => instance.function === `${prefix}${fn}`);
};

// Removes every instance of a function and waits until they are gone: the next request comes from zero.
export const toZero = (fn) => {
  for (let tries = 0; tries < 200; tries += 1) {
    const left = instances(fn);
    if (left.length === 0) return;
    for (const { id } of left) http.del(`${url}/v1/instances/${id}`, null, admin('remove'));
    sleep(0.05);
  }
  throw new Error(`${prefix}${fn} still has instances after ten seconds of removing them`);
};

// Moves an instance to another worker; answers what the platform does.
export const migrate = (id) => {
  const headers = { authorization: `Bearer ${key}`, 'content-type': 'application/json' };
  return http.post(`${url}/v1/instances/${id}/migrate`, '{}', tagged('migrate', { headers }));
};

// Deploys a packed folder as a new version and waits until it can serve. Answers the version as the platform tells it.
export const deploy = (archive, query = '') => {
  const headers = { authorization: `Bearer ${key}`, 'content-type': 'application/gzip' };
  const accepted = http.post(`${url}/v1/functions${query}`, archive, tagged('deploy', { headers }));
  if (accepted.status !== 202) throw new Error(`deploy: ${accepted.status} ${accepted.body}`);
  const { function: fn, version } = accepted.json();
  for (let tries = 0; tries < 1200; tries += 1) {
    const now = http.get(`${url}/v1/functions/${fn}/versions/${version}`, admin('version'));
    const state = now.status === 200 ? now.json('state') : `status ${now.status}`;
    if (state === 'live') return now.json();
    if (state === 'failed') throw new Error(`deploy: ${now.body}`);
    sleep(0.1);
  }
  throw new Error(`deploy: version ${version} of ${fn} does not go live within two minutes`);
};

// Deploys a packed folder as a canary of these steps and waits until it has all invocations.
export const canary = (archive, steps, stepSeconds) => {
  const { function: fn, version } = deploy(archive, `?canary=${steps}&step_s=${stepSeconds}`);
  for (let tries = 0; tries < 600; tries += 1) {
    const now = http.get(`${url}/v1/functions/${fn}`, admin('describe'));
    const told = now.status === 200 ? now.json('canary') : undefined;
    if (told && told.to === version && told.state === 'live') return { version, fn };
    if (told && told.to === version && told.state !== 'growing') throw new Error(`canary: ${JSON.stringify(told)}`);
    sleep(0.2);
  }
  throw new Error(`canary: version ${version} of ${fn} does not take over within two minutes`);
};

// Has the version serve that did before. Answers the rollback as the platform tells it.
export const rollBack = (fn) => {
  const headers = { authorization: `Bearer ${key}`, 'content-type': 'application/json' };
  const done = http.post(`${url}/v1/functions/${fn}/rollback`, '{}', tagged('rollback', { headers }));
  if (done.status !== 200) throw new Error(`rollback: ${done.status} ${done.body}`);
  return done.json();
};
