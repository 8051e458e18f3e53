// For Deno and Bun: answers with a draw from every source of keys and ids that they have, all of which drew before the
// snapshot.
import { Buffer } from 'node:buffer';
import crypto from 'node:crypto';

const hex = (bytes) => Buffer.from(bytes).toString('hex');

async function draw() {
  const key = await globalThis.crypto.subtle.generateKey({ name: 'ECDSA', namedCurve: 'P-256' }, true, ['sign']);
  return {
    'Math.random': Math.random(),
    randomUUID: globalThis.crypto.randomUUID(),
    getRandomValues: hex(globalThis.crypto.getRandomValues(new Uint8Array(8))),
    ecdsa: hex(await globalThis.crypto.subtle.exportKey('pkcs8', key.privateKey)),
    'node:crypto randomUUID': crypto.randomUUID(),
    'node:crypto randomBytes': hex(crypto.randomBytes(8)),
    'node:crypto randomInt': crypto.randomInt(2 ** 47),
    ed25519: hex(crypto.generateKeyPairSync('ed25519').privateKey.export({ type: 'pkcs8', format: 'der' })),
  };
}

await draw();
const port = Number(globalThis.process.env.PORT);
const answer = async () => new Response(JSON.stringify(await draw()));
if (globalThis.Deno) Deno.serve({ port, hostname: '127.0.0.1' }, answer);
else Bun.serve({ port, hostname: '127.0.0.1', fetch: answer });
